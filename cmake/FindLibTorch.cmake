# FindLibTorch: the target LibTorch::LibTorch (torch_cpu and c10), from a PyTorch wheel or a LibTorch folder.
# PyTorch's own CMake package insists on a CUDA toolkit even for CPU programs; this module does not.
# Looks only in LIBTORCH_DIR where that is set; else in CMAKE_PREFIX_PATH (torch.utils.cmake_prefix_path works too),
# the project's .venv, and the folders in LibTorch_HINTS. Sets LibTorch_VERSION and LibTorch_ROOT_DIR.
set(LIBTORCH_DIR "" CACHE PATH "LibTorch folder: the one that holds include/ and lib/")
set(_libtorch_header torch/csrc/api/include/torch/torch.h)
if(LIBTORCH_DIR)
  find_path(LibTorch_INCLUDE_DIR ${_libtorch_header} PATHS ${LIBTORCH_DIR} PATH_SUFFIXES include NO_DEFAULT_PATH)
else()
  file(GLOB _libtorch_venv ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch
                           ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  set(_libtorch_prefixes ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH})
  list(TRANSFORM _libtorch_prefixes APPEND /../.. REGEX "share/cmake/?$")
  find_path(LibTorch_INCLUDE_DIR ${_libtorch_header}
            HINTS ${_libtorch_prefixes} ${_libtorch_venv} ${LibTorch_HINTS} PATH_SUFFIXES include)
endif()
if(LibTorch_INCLUDE_DIR)
  get_filename_component(LibTorch_ROOT_DIR ${LibTorch_INCLUDE_DIR} DIRECTORY)
endif()
foreach(_lib torch_cpu c10)
  find_library(LibTorch_${_lib}_LIBRARY ${_lib} HINTS ${LibTorch_ROOT_DIR}/lib NO_DEFAULT_PATH)
endforeach()
foreach(_file torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(LibTorch_INCLUDE_DIR AND NOT LibTorch_VERSION AND EXISTS ${LibTorch_INCLUDE_DIR}/${_file})
    file(STRINGS ${LibTorch_INCLUDE_DIR}/${_file} LibTorch_VERSION REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]")
    string(REGEX REPLACE "[^0-9;]" "" LibTorch_VERSION "${LibTorch_VERSION}")
    list(JOIN LibTorch_VERSION "." LibTorch_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "give -DLIBTORCH_DIR=DIR, the folder that holds LibTorch's include/ and lib/")
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY)

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_c10_LIBRARY})
  add_library(LibTorch::torch_cpu SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cpu PROPERTIES IMPORTED_LOCATION ${LibTorch_torch_cpu_LIBRARY})
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    ${LibTorch_INCLUDE_DIR} ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_link_libraries(LibTorch::LibTorch INTERFACE LibTorch::torch_cpu LibTorch::c10)
endif()
