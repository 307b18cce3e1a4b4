// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A thread's accumulators, acc[0] and on, as operands of inline assembly: TANDEM_NAMES_n, what its text calls the
/// first n operands, and TANDEM_ACCUMULATORS_n(0), what they are. Only for the headers that wrap matrix instructions.
// clang-format off

#define TANDEM_NAMES_4 "%0, %1, %2, %3"
#define TANDEM_NAMES_8 TANDEM_NAMES_4 ", %4, %5, %6, %7"
#define TANDEM_NAMES_16 TANDEM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TANDEM_NAMES_32 TANDEM_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_NAMES_64 \
  TANDEM_NAMES_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TANDEM_NAMES_128 \
  TANDEM_NAMES_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define TANDEM_ACCUMULATORS_4(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define TANDEM_ACCUMULATORS_8(i) TANDEM_ACCUMULATORS_4(i), TANDEM_ACCUMULATORS_4(i + 4)
#define TANDEM_ACCUMULATORS_16(i) TANDEM_ACCUMULATORS_8(i), TANDEM_ACCUMULATORS_8(i + 8)
#define TANDEM_ACCUMULATORS_32(i) TANDEM_ACCUMULATORS_16(i), TANDEM_ACCUMULATORS_16(i + 16)
#define TANDEM_ACCUMULATORS_64(i) TANDEM_ACCUMULATORS_32(i), TANDEM_ACCUMULATORS_32(i + 32)
#define TANDEM_ACCUMULATORS_128(i) TANDEM_ACCUMULATORS_64(i), TANDEM_ACCUMULATORS_64(i + 64)
// clang-format on
