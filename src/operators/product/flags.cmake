# These loops know no torch. They are compiled for more instructions than the rest; what runs them asks the processor.
file(GLOB product ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
set_source_files_properties(${product} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
# What a file for AMX is compiled with. GCC 12 warns of its own intrinsics (bug 105593).
set(zero_amx_flags -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma -mamx-tile -mamx-bf16
    -mprefer-vector-width=512 "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized>")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/amx.cpp PROPERTIES COMPILE_OPTIONS "${zero_amx_flags}")
endif()
