# Install and export rules: headers, libzero, the tool, and the CMake package `zero` with the target zero::zero.
include(CMakePackageConfigHelpers)
set(zero_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zero)

# Installed programs find libzero beside them and LibTorch where it was at configure time.
file(RELATIVE_PATH zero_lib_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(zero PROPERTIES INSTALL_RPATH "$ORIGIN;${LibTorch_ROOT_DIR}/lib")
install(TARGETS zero EXPORT zeroTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET zero_tool)
  set_target_properties(zero_tool PROPERTIES
    INSTALL_RPATH "$ORIGIN/${zero_lib_from_bin};${LibTorch_ROOT_DIR}/lib")
  install(TARGETS zero_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
# What is loaded at run time lies beside libzero, where it is looked for.
install(TARGETS zero_sentencepiece LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET zero_cuda)
  set_target_properties(zero_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;${LibTorch_ROOT_DIR}/lib")
  install(TARGETS zero_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/zero DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/zeroConfig.cmake.in ${PROJECT_BINARY_DIR}/zeroConfig.cmake
                              INSTALL_DESTINATION ${zero_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/zeroConfig.cmake ${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake
        DESTINATION ${zero_package_dir})
install(EXPORT zeroTargets NAMESPACE zero:: DESTINATION ${zero_package_dir})
