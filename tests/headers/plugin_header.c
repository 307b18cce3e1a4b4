/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "tandem/plugin/transport.h"

/* Readers look at no field beyond struct_size, so it must come first in every struct of the interface. */
_Static_assert(offsetof(tandem_host_services, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(tandem_open_params, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(tandem_transfer, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(tandem_post_params, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(tandem_transport, struct_size) == 0, "struct_size comes first");
_Static_assert(sizeof(((tandem_transfer*)0)->bytes) == 8, "sizes are 64-bit");
