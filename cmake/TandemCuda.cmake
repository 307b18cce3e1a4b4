# SPDX-License-Identifier: Apache-2.0

# Sets TANDEM_WITH_CUDA, and enables the CUDA language, only where that is wanted, there is CUDA code, and nvcc is found.
set(TANDEM_WITH_CUDA OFF)
set(TANDEM_CUDA_SOURCES) # the project's .cu files, relative to the source directory
if(NOT TANDEM_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TANDEM_CUDA is '${TANDEM_CUDA}', not AUTO, ON or OFF")
endif()
if(TANDEM_CUDA STREQUAL "OFF")
  return()
endif()
if(NOT TANDEM_CUDA_SOURCES)
  message(STATUS "CUDA: this version has no CUDA code")
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  set(TANDEM_WITH_CUDA ON)
elseif(TANDEM_CUDA STREQUAL "ON")
  message(FATAL_ERROR "TANDEM_CUDA=ON needs nvcc: put it on PATH or set CUDACXX; TANDEM_CUDA=AUTO does without")
else()
  message(STATUS "CUDA: no nvcc found, building without")
endif()
