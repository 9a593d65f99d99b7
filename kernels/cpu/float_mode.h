// Denormals are zero on every member of the team, whatever the calling thread had set: the caller
// and the pool's own threads must round alike.
#pragma once

#include "linear.h"
#include "simd.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace rt {
namespace RT_ISA {

#if defined(__x86_64__)
RT_INLINE void enter_float_mode(ThreadScratch& scratch) {
  scratch.saved_float_mode = _mm_getcsr();
  _mm_setcsr(0x1f80 | 0x8040);  // all exceptions masked, round to nearest, FTZ and DAZ
}
RT_INLINE void leave_float_mode(ThreadScratch& scratch) { _mm_setcsr(scratch.saved_float_mode); }
#else
RT_INLINE void enter_float_mode(ThreadScratch&) {}
RT_INLINE void leave_float_mode(ThreadScratch&) {}
#endif

}  // namespace RT_ISA
}  // namespace rt
