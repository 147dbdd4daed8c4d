#pragma once
// ZERO_ANY_DEVICE stands before what an accelerator's compiler builds too: the arithmetic exists once.

#ifdef __CUDACC__
#define ZERO_ANY_DEVICE __host__ __device__
#else
#define ZERO_ANY_DEVICE
#endif
