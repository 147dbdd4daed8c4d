# FindLibTorch: the target LibTorch::LibTorch (torch_cpu and c10), from a PyTorch wheel or a LibTorch folder.
# PyTorch's own CMake package insists on a CUDA toolkit even for CPU programs; this module does not.
# Looks in LIBTORCH_DIR, CMAKE_PREFIX_PATH, and the project's .venv. Sets LibTorch_VERSION and LibTorch_ROOT_DIR.
set(LIBTORCH_DIR "" CACHE PATH "LibTorch folder: the one that holds include/ and lib/")
file(GLOB _libtorch_venv ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)

find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h
          HINTS ${LIBTORCH_DIR} PATHS ${_libtorch_venv} PATH_SUFFIXES include)
if(LibTorch_INCLUDE_DIR)
  get_filename_component(LibTorch_ROOT_DIR ${LibTorch_INCLUDE_DIR} DIRECTORY)
endif()
foreach(_lib torch_cpu c10)
  find_library(LibTorch_${_lib}_LIBRARY ${_lib} HINTS ${LibTorch_ROOT_DIR}/lib NO_DEFAULT_PATH)
endforeach()
if(LibTorch_INCLUDE_DIR AND EXISTS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h)
  file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h _libtorch_version
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]")
  string(REGEX REPLACE "[^0-9;]" "" LibTorch_VERSION "${_libtorch_version}")
  list(JOIN LibTorch_VERSION "." LibTorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "give -DLIBTORCH_DIR=DIR, or install the wheel with ./dev build")

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
