# SPDX-License-Identifier: Apache-2.0

# Sets TANDEM_WITH_NCCL where CUDA code is built and NCCL's header is found. Nothing links NCCL: it is loaded at run time.
set(TANDEM_WITH_NCCL OFF)
set(TANDEM_NCCL_MINIMUM 2.19)
if(NOT TANDEM_WITH_CUDA)
  return()
endif()
find_path(TANDEM_NCCL_INCLUDE_DIR nccl.h
  HINTS ENV NCCL_ROOT ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include
  DOC "Where nccl.h is")
mark_as_advanced(TANDEM_NCCL_INCLUDE_DIR)
if(NOT TANDEM_NCCL_INCLUDE_DIR)
  message(STATUS "NCCL: no nccl.h found, building without; TANDEM_NCCL_INCLUDE_DIR can say where it is")
  return()
endif()
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${TANDEM_NCCL_INCLUDE_DIR}/nccl.h line REGEX "^#define NCCL_${part} " LIMIT_COUNT 1)
  string(REGEX REPLACE "^#define NCCL_${part} +" "" NCCL_${part} "${line}")
endforeach()
set(version ${NCCL_MAJOR}.${NCCL_MINOR}.${NCCL_PATCH})
if(version VERSION_LESS TANDEM_NCCL_MINIMUM)
  message(STATUS "NCCL: ${TANDEM_NCCL_INCLUDE_DIR}/nccl.h is of ${version}, ${TANDEM_NCCL_MINIMUM} or newer is needed: building without")
  return()
endif()
set(TANDEM_WITH_NCCL ON)
message(STATUS "NCCL: headers of ${version}")
