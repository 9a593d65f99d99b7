#define RT_ISA isa_avx2
#include "portable_table.h"

namespace rt {

const KernelTable& avx2_table() { return RT_ISA::portable_table; }

}  // namespace rt
