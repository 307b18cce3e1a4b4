/* SPDX-License-Identifier: Apache-2.0 */
#include <tandem/plugin/transport.h>

/* A plugin's outline: the host refuses it, as it offers no functions. */
const tandem_transport* tandem_transport_query_v0(void);

const tandem_transport* tandem_transport_query_v0(void) {
  static const tandem_transport transport = {
      .struct_size = sizeof(tandem_transport),
      .abi = TANDEM_TRANSPORT_ABI,
      .name = "outline",
      .description = "builds, but moves nothing",
      .option_help = "",
  };
  return &transport;
}
