#define RT_ISA isa_scalar
#include "portable_table.h"

namespace rt {

const KernelTable& scalar_table() { return RT_ISA::portable_table; }

}  // namespace rt
