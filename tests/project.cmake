# Tests of the project itself: its rules, its script, its installed package.
find_program(ZERO_PYTHON python3 REQUIRED)
find_program(ZERO_BASH bash REQUIRED)

add_test(NAME include_rule COMMAND ${ZERO_PYTHON} ${PROJECT_SOURCE_DIR}/tools/check_includes.py)
add_test(NAME check_includes COMMAND ${ZERO_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/check_includes_test.py)
add_test(NAME bench_budgets COMMAND ${ZERO_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/budgets_test.py)
add_test(NAME format COMMAND ${PROJECT_SOURCE_DIR}/dev fmt --check)
# Builds the fuzz targets where that is still to do, which takes minutes: `./dev soak` runs it.
add_test(NAME fuzz CONFIGURATIONS soak COMMAND ${PROJECT_SOURCE_DIR}/dev fuzz 1)
add_test(NAME dev_script COMMAND ${ZERO_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/dev_test.sh)

set(consumer_flags "")
set(consumer_tokenizer ${CMAKE_CURRENT_SOURCE_DIR}/golden/sentencepiece/bpe.model)
if(ZERO_SANITIZE)
  set(consumer_flags "-fsanitize=${ZERO_SANITIZE}")
  set(consumer_tokenizer "")  # a sanitizer allows no plugin a scope of its own
endif()
add_test(NAME consumer COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSCRATCH=${PROJECT_BINARY_DIR}/consumer
         -DCOMPILER=${CMAKE_CXX_COMPILER} -DCXX_FLAGS=${consumer_flags}
         -DTOKENIZER=${consumer_tokenizer} -DTOOL=$<TARGET_EXISTS:zero_tool>
         -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/run.cmake)
add_test(NAME symbols COMMAND ${ZERO_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/symbols_test.py $<TARGET_FILE:zero>
         $<TARGET_FILE:zero_sentencepiece> ${LibTorch_ROOT_DIR}/lib)
set(project_tests include_rule check_includes bench_budgets format fuzz dev_script symbols consumer)
if(TARGET zero_tool AND NOT ZERO_SANITIZE)
  add_test(NAME tutorial COMMAND ${ZERO_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/tutorial.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
           ${PROJECT_BINARY_DIR}/tutorial)
  list(APPEND project_tests tutorial)
  set_tests_properties(tutorial PROPERTIES PROCESSORS 2)
endif()
set_tests_properties(${project_tests} PROPERTIES TIMEOUT 1200)
