# zero_folder(NAME [TORCH] [USES folder...] [LIBS lib...]): one folder of src/ as the static library zero_NAME, which tests link.
# zero_library(): the objects of all folders in one shared library, target zero::zero.
# zero_test(NAME [TORCH] [RANKS n] [TIMEOUT s] [APART FILTER] USES folder... [LIBS lib...] FILES file...): tests/FILE_test.cpp of each FILE
# as one GoogleTest program, NAME_test, of which ctest runs each test by itself. Without RANKS it is one more test of the
# configuration "together", NAME, which runs the whole program in one process (./dev test does: ctest -C together -LE single).
# APART: GoogleTest's filter of tests that need a process of their own there too (they bound its memory).
# RANKS: the most ranks that one of its tests starts; ctest leaves it that many cores.

include(GoogleTest)
set(ZERO_FOLDERS "" CACHE INTERNAL "")
set(ZERO_FOLDER_LIBS "" CACHE INTERNAL "")

function(zero_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${ZERO_WERROR}>:-Werror>)
  # Sums must not depend on the compiler's choice of fused multiply-add: kernels that want it ask for it.
  # Nobody reads floating-point exceptions: without this GCC leaves loops with a comparison to one element at a time on AVX2.
  target_compile_options(${target} PRIVATE -ffp-contract=off -fno-trapping-math)
  # GCC collects its own garbage a tenth of its time, unless it may take a gigabyte first.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  get_target_property(type ${target} TYPE)
  if(ZERO_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${ZERO_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${ZERO_SANITIZE})
    if(type STREQUAL EXECUTABLE)
      target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/sanitizer_defaults.cpp)
    endif()
  endif()
endfunction()

# Tensors, autograd and torch::nn::Module take 20 s to parse, and 3 s where they are precompiled. It is not torch/torch.h
# that is precompiled: GCC instantiates all its pending templates anew in every file, 4 s more, used or not.
# Without NDEBUG some classes of LibTorch's headers have members that those of its library, a release build, lack.
function(zero_use_torch target)
  target_link_libraries(${target} PUBLIC LibTorch::LibTorch)
  target_compile_definitions(${target} PRIVATE $<$<CONFIG:Debug>:NDEBUG>)
  if(NOT TARGET zero_pch)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/zero_pch.cpp CONTENT "// Owner of the precompiled header.\n")
    add_library(zero_pch OBJECT ${PROJECT_BINARY_DIR}/zero_pch.cpp)
    target_link_libraries(zero_pch PRIVATE LibTorch::LibTorch)
    zero_compile_options(zero_pch)
    target_compile_definitions(zero_pch PRIVATE $<$<CONFIG:Debug>:NDEBUG>)
    target_precompile_headers(zero_pch PRIVATE <torch/types.h> <torch/csrc/autograd/variable.h> <torch/nn/module.h>)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    # A program would be compiled with -fPIE, which the header was not: GCC would refuse it.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM zero_pch)
endfunction()

# For programs that only call the library: halves the time that they take to compile. (-O0 would not take the precompiled
# header.)
function(zero_optimise_less target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-Og>)
endfunction()

# As many files at a time as ZERO_UNITY_FILES says: the 3 s for the precompiled header are spent once for all of them.
function(zero_compile_together target)
  if(ZERO_UNITY_FILES)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${ZERO_UNITY_FILES})
    # GCC takes the files for headers that several others include.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

function(zero_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "USES;LIBS")
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  file(GLOB transports CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*/*.cpp)
  list(FILTER transports EXCLUDE REGEX "/(cuda|nccl|sentencepiece)/")
  list(APPEND sources ${transports})
  if(NOT sources)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/empty_${name}.cpp CONTENT "// No sources yet.\n")
    set(sources ${PROJECT_BINARY_DIR}/empty_${name}.cpp)
  endif()
  add_library(zero_${name}_objects OBJECT ${sources})
  target_include_directories(zero_${name}_objects PUBLIC ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(zero_${name}_objects PRIVATE ${arg_LIBS} Threads::Threads)
  zero_compile_options(zero_${name}_objects)
  zero_compile_together(zero_${name}_objects)
  if(arg_TORCH)
    zero_use_torch(zero_${name}_objects)
  endif()

  add_library(zero_${name} STATIC $<TARGET_OBJECTS:zero_${name}_objects>)
  set_target_properties(zero_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(zero_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include)
  list(TRANSFORM arg_USES PREPEND zero_)
  target_link_libraries(zero_${name} PUBLIC ${arg_USES} PRIVATE ${arg_LIBS} Threads::Threads)
  if(arg_TORCH)
    target_link_libraries(zero_${name} PUBLIC LibTorch::LibTorch)
  endif()
  set(ZERO_FOLDERS ${ZERO_FOLDERS} ${name} CACHE INTERNAL "")
  set(ZERO_FOLDER_LIBS ${ZERO_FOLDER_LIBS} ${arg_LIBS} CACHE INTERNAL "")
endfunction()

function(zero_library)
  foreach(folder ${ZERO_FOLDERS})
    list(APPEND objects $<TARGET_OBJECTS:zero_${folder}_objects>)
  endforeach()
  add_library(zero SHARED ${objects})
  add_library(zero::zero ALIAS zero)
  set_target_properties(zero PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_link_libraries(zero PUBLIC LibTorch::LibTorch PRIVATE $<BUILD_INTERFACE:${ZERO_FOLDER_LIBS}> Threads::Threads)
  target_include_directories(zero PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                         $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  zero_compile_options(zero)
endfunction()

function(zero_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "RANKS;TIMEOUT;APART" "USES;LIBS;FILES")
  list(TRANSFORM arg_FILES APPEND _test.cpp)
  add_executable(${name}_test ${arg_FILES})
  list(TRANSFORM arg_USES PREPEND zero_)
  target_link_libraries(${name}_test PRIVATE ${arg_USES} ${arg_LIBS} GTest::gtest Threads::Threads)
  target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/include)
  zero_compile_options(${name}_test)
  zero_optimise_less(${name}_test)
  zero_compile_together(${name}_test)
  target_compile_definitions(${name}_test PRIVATE ZERO_TEST_DATA="${PROJECT_SOURCE_DIR}/tests")
  if(arg_TORCH)
    target_link_libraries(${name}_test PRIVATE zero_test_main)
    zero_use_torch(${name}_test)
  else()
    target_link_libraries(${name}_test PRIVATE GTest::gtest_main)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set(properties TIMEOUT ${arg_TIMEOUT})
  if(arg_RANKS)
    list(APPEND properties PROCESSORS ${arg_RANKS} LABELS multirank)
  else()
    set(rest "")
    if(arg_APART)
      gtest_discover_tests(${name}_test TEST_FILTER ${arg_APART} DISCOVERY_TIMEOUT 60 TEST_LIST ${name}_apart PROPERTIES ${properties})
      set(rest --gtest_filter=-${arg_APART})
    endif()
    list(APPEND properties LABELS single)
    add_test(NAME ${name} CONFIGURATIONS together
             COMMAND ${name}_test --gtest_brief=1 ${rest} --gtest_output=xml:${PROJECT_BINARY_DIR}/test-results/${name}.xml)
    set_tests_properties(${name} PROPERTIES TIMEOUT 600)
  endif()
  if(arg_APART AND NOT arg_RANKS)
    gtest_discover_tests(${name}_test TEST_FILTER -${arg_APART} DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
  else()
    gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
  endif()
endfunction()

# The tests of a program once more as NAME.TEST, with a GoogleTest FILTER and another ENVIRONMENT.
function(zero_test_again program name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "RANKS;FILTER;ENVIRONMENT" "")
  gtest_discover_tests(${program}_test TEST_PREFIX ${name}. TEST_FILTER ${arg_FILTER} DISCOVERY_TIMEOUT 60 TEST_LIST ${name}_tests
                       PROPERTIES TIMEOUT 300 PROCESSORS ${arg_RANKS} LABELS multirank ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()
