# These loops know no torch. Two files are compiled for more instructions than the rest; dispatch.cpp asks the processor
# before it runs them. Products and their sums may be one instruction: sums of attention depend on the registers anyway.
file(GLOB attention ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
set_source_files_properties(${attention} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
set(loops -O3 -ffp-contract=fast)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/portable.cpp PROPERTIES COMPILE_OPTIONS "${loops}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/avx2.cpp PROPERTIES COMPILE_OPTIONS "${loops};-mavx2;-mfma")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/avx512.cpp PROPERTIES
                              COMPILE_OPTIONS "${loops};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-mprefer-vector-width=512")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/amx.cpp PROPERTIES COMPILE_OPTIONS "${loops};${zero_amx_flags}")
endif()
