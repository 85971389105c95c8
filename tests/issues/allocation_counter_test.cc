// The counting operator new of the conformance suite, in this program too.
#include "tests/conformance/allocation_counter_test.cc"
