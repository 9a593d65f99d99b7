#define RT_ISA isa_avx512
#include "portable_table.h"

namespace rt {

const KernelTable& avx512_table() { return RT_ISA::portable_table; }

}  // namespace rt
