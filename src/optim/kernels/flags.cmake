# The kernels know no torch, and two of them are compiled for more instructions than the rest; dispatch.cpp asks the
# processor before it runs them.
file(GLOB kernels ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
set_source_files_properties(${kernels} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mf16c;-O3")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/avx512.cpp PROPERTIES
                              COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-O3")
endif()
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/../lr_schedule.cpp ${CMAKE_CURRENT_LIST_DIR}/../lr_deepspeed.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
