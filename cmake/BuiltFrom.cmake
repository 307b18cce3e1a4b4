# SPDX-License-Identifier: Apache-2.0

# Run at every build (cmake -D SOURCE=... -D OUTPUT=... -P): writes the commit that SOURCE is at, and whether files
# differ from it. The file changes only if that does. Outside of git, as in a release's archive, it says "unknown".
cmake_minimum_required(VERSION 3.25)
set(commit unknown)
set(dirty false)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${SOURCE} source)
  # An archive that was unpacked inside of some other repository is not that repository's.
  if(top STREQUAL source)
    execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse HEAD
      OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain
      OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(failed EQUAL 0)
      set(commit ${head})
    endif()
    if(changes)
      set(dirty true)
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define TANDEM_COMMIT \"@commit@\"\n#define TANDEM_DIRTY @dirty@\n" @ONLY)
