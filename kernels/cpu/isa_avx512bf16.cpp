#define RT_ISA isa_avx512bf16
#include "portable_table.h"

namespace rt {

const KernelTable& avx512bf16_table() { return RT_ISA::portable_table; }

}  // namespace rt
