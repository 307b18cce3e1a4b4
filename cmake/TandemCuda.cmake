# SPDX-License-Identifier: Apache-2.0

# Sets TANDEM_WITH_CUDA, and enables the CUDA language, only where that is wanted and nvcc is found.
set(TANDEM_WITH_CUDA OFF)
set(TANDEM_SM90 OFF)
set(TANDEM_CUDA_SOURCES # the library's .cu files, relative to the source directory
  lib/device/cuda/rows.cu
  lib/dsa/cuda/lists.cu
  lib/kernels/cuda/generic/head_sums.cu
  lib/kernels/cuda/generic/indexer_loss.cu
  lib/kernels/cuda/generic/indexer_topk.cu
  lib/kernels/cuda/generic/select_topk.cu
  lib/kernels/cuda/generic/sparse_backward.cu
  lib/kernels/cuda/generic/sparse_forward.cu
  plugins/transports/cuda_p2p/push_kernel.cu)
set(TANDEM_SM90_SOURCES # of these, what Hopper's own instructions are for
  lib/kernels/cuda/sm90/indexer.cu
  lib/kernels/cuda/sm90/indexer_loss.cu
  lib/kernels/cuda/sm90/plain_lists.cu
  lib/kernels/cuda/sm90/sparse_backward.cu
  lib/kernels/cuda/sm90/sparse_forward.cu)
# What the code needs: cudaStreamGetDevice, and an nvcc that knows sm_100.
set(TANDEM_CUDA_MINIMUM 12.8)
if(NOT TANDEM_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TANDEM_CUDA is '${TANDEM_CUDA}', not AUTO, ON or OFF")
endif()
if(TANDEM_CUDA STREQUAL "OFF")
  return()
endif()
if(TANDEM_CUDA STREQUAL "AUTO" AND TANDEM_SANITIZE)
  # The driver maps memory where the sanitizers have theirs, and .cu files are not instrumented.
  message(STATUS "CUDA: left out of a build with sanitizers; TANDEM_CUDA=ON insists on it")
  return()
endif()

# A GPU's own code for each generation, and PTX of the last one for what comes after it.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100")
endif()
# Linked by name instead: CUDA::cudart_static, in the top CMakeLists.txt.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)

# CMake looks on PATH alone; installers leave it out of there.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(TANDEM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(TANDEM_NVCC)
  if(TANDEM_NVCC)
    set(ENV{CUDACXX} ${TANDEM_NVCC})
  endif()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(TANDEM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TANDEM_CUDA=ON needs nvcc: put it on PATH or set CUDACXX; TANDEM_CUDA=AUTO does without")
  endif()
  message(STATUS "CUDA: no nvcc found, building without")
  return()
endif()
# Before the language: an older nvcc refuses the architectures above, and less clearly.
find_package(CUDAToolkit QUIET)
if(NOT CUDAToolkit_FOUND OR CUDAToolkit_VERSION VERSION_LESS TANDEM_CUDA_MINIMUM)
  set(message "CUDA ${TANDEM_CUDA_MINIMUM} or newer is needed, found '${CUDAToolkit_VERSION}'")
  if(TANDEM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TANDEM_CUDA=ON: ${message}")
  endif()
  message(STATUS "${message}: building without")
  return()
endif()
enable_language(CUDA)
set(TANDEM_WITH_CUDA ON)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "90|all|native")
  set(TANDEM_SM90 ON)
endif()
message(STATUS "CUDA: ${CUDAToolkit_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}")
