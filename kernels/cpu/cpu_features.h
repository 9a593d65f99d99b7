// What this processor can run, and the one-time permission for AMX tiles.
#pragma once

#include <cstdint>

namespace rt {

// Best RtLevel of this processor and operating system; asks the kernel for AMX tile state once.
int32_t best_level();

}  // namespace rt
