/* The library of the `native` back end, as one unit to compile. */

#include "native_forward.h"
#include "native_backward.h"

int softvq_panel(void) { return PANEL; }
int softvq_lanes(void) { return LANES; }
int softvq_notes(void) { return HEAD + 2 * KEPT; }
