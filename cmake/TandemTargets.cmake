# SPDX-License-Identifier: Apache-2.0

# What every target of the project is compiled with.
function(tandem_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  # What nvcc makes of a .cu file does not bear -Wconversion. CMake 3.25 does not know how nvcc is told of C++20.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wconversion;$<$<BOOL:${TANDEM_WERROR}>:-Werror>>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xcompiler=-Wall,-Wextra;-lineinfo;$<$<BOOL:${TANDEM_WERROR}>:-Werror=all-warnings>>")
  if(TANDEM_WITH_CUDA)
    set_target_properties(${target} PROPERTIES CUDA_VISIBILITY_PRESET hidden)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 sees overlapping copies in std::string's operator+ (its bug 105651).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-Wno-restrict>)
  endif()
  if(TANDEM_SANITIZE)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TANDEM_SANITIZE};-fno-omit-frame-pointer;-g>")
    if(TANDEM_SANITIZE MATCHES "thread")
      # Fences beside Asio's locks, which ThreadSanitizer cannot see; the locks suffice.
      target_compile_definitions(${target} PRIVATE BOOST_ASIO_DISABLE_FENCED_BLOCK)
    endif()
    if(TANDEM_SANITIZE MATCHES "undefined")
      # Without it a finding is printed and the test passes.
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${TANDEM_SANITIZE})
  endif()
endfunction()

# tandem_test(<name> SOURCES a_test.cpp ... [LABELS unit tsan ...] [LIBRARIES ...] [TIMEOUT seconds])
# One executable, one ctest entry per TEST. Without LIBRARIES it links tandem_objects.
function(tandem_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LABELS;LIBRARIES" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_LIBRARIES)
    set(arg_LIBRARIES tandem_objects)
  endif()
  add_executable(${name} ${arg_SOURCES})
  tandem_configure_target(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  # gtest_discover_tests keeps the first of several labels only. ctest -L takes a pattern: it finds each in the joined one.
  list(JOIN arg_LABELS "+" labels)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    TEST_PREFIX "${name}." PROPERTIES LABELS "${labels}" TIMEOUT ${arg_TIMEOUT})
  if("tsan" IN_LIST arg_LABELS)
    add_dependencies(tsan_tests ${name})
  endif()
endfunction()
