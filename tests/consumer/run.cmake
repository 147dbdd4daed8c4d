# Installs the build folder BUILD into a fresh prefix, builds tests/consumer against it, and runs that alone and, by
# the installed tool, on two ranks. TOKENIZER is a SentencePiece model that it opens.
# Usage: cmake -DBUILD=DIR -DSCRATCH=DIR -DCOMPILER=CXX [-DCXX_FLAGS=...] [-DTOOL=1] -DTOKENIZER=FILE -P run.cmake
file(REMOVE_RECURSE ${SCRATCH})
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\ngave ${status}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/first)
# A package may be moved: nothing in it may name the place where it was installed first.
file(RENAME ${SCRATCH}/first ${SCRATCH}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR} -B ${SCRATCH}/build -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/consumer ${TOKENIZER})
if(NOT output MATCHES "consumer: ok: rank 0 of 1,")
  message(FATAL_ERROR "the consumer alone printed: ${output}")
endif()
if(TOOL)
  run(${SCRATCH}/prefix/bin/zero launch --ranks 2 -- ${SCRATCH}/build/consumer ${TOKENIZER})
  if(NOT output MATCHES "consumer: ok: rank 0 of 2,")
    message(FATAL_ERROR "the consumer on two ranks printed: ${output}")
  endif()
endif()
file(REMOVE_RECURSE ${SCRATCH})
