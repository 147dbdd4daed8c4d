# What stands behind operators/cpu_operators.h, or what says that it was left out.
include(src/operators/product/flags.cmake)
include(src/operators/attention/flags.cmake)
set(left_out ${CMAKE_CURRENT_LIST_DIR}/left_out.cpp)
if(NOT ZERO_CPU_OPERATORS)
  file(GLOB left_out CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp ${CMAKE_CURRENT_LIST_DIR}/*/*.cpp)
  list(FILTER left_out EXCLUDE REGEX "/(left_out|scope)\\.cpp$")
endif()
set_source_files_properties(${left_out} PROPERTIES HEADER_FILE_ONLY ON)
