# SPDX-License-Identifier: Apache-2.0
# cmake -D KIND=shared|static -D SOURCE_DIR= -D BUILD_DIR= -D WORK_DIR= ... -P run.cmake
# shared takes the library of BUILD_DIR; static builds one of its own first, unoptimised and for one generation of GPUs,
# to be quick.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nfailed (${result}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(toolchain -G ${GENERATOR} -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${CXX_COMPILER})
if(CXX_COMPILER_LAUNCHER)
  list(APPEND toolchain -D CMAKE_CXX_COMPILER_LAUNCHER=${CXX_COMPILER_LAUNCHER})
endif()
set(stage ${WORK_DIR}/stage)
set(prefix "${WORK_DIR}/moved here") # a blank in the path is part of the test
file(REMOVE_RECURSE ${stage} ${prefix} ${WORK_DIR}/consumer)

if(KIND STREQUAL "static")
  set(BUILD_DIR ${WORK_DIR}/library)
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${BUILD_DIR} ${toolchain} -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_FLAGS_DEBUG=-O0
      -D CMAKE_CUDA_ARCHITECTURES=90 -D BUILD_SHARED_LIBS=OFF -D TANDEM_BUILD_TESTS=OFF -D TANDEM_BUILD_TOOLS=OFF)
  run(${CMAKE_COMMAND} --build ${BUILD_DIR} --parallel 2)
endif()
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${stage})

file(GLOB_RECURSE configs ${stage}/*.cmake)
if(NOT configs)
  message(FATAL_ERROR "no package config was installed below ${stage}")
endif()
foreach(config ${configs})
  file(READ ${config} text)
  foreach(path ${stage} ${SOURCE_DIR} ${BUILD_DIR})
    string(FIND "${text}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${config} names ${path}: it would break where the package is moved")
    endif()
  endforeach()
endforeach()
file(RENAME ${stage} ${prefix})

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/project -B ${WORK_DIR}/consumer ${toolchain}
    -D CMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=${prefix}" -D EXPECTED_KIND=${KIND} "-DEXPECTED_PREFIX=${prefix}")
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer --parallel 2)
run(${WORK_DIR}/consumer/consumer)
message(STATUS "${output}")
if(NOT output MATCHES "consumer ok")
  message(FATAL_ERROR "the consumer printed:\n${output}")
endif()
if(KIND STREQUAL "shared" AND TOOLS)
  run("${prefix}/bin/tandem" --version)
endif()
