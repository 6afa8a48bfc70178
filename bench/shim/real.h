/* What every shim needs: the next definition of an intercepted function. */
#ifndef SEALOG_SHIM_REAL_H
#define SEALOG_SHIM_REAL_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* Declares `real`, the function that the intercepted one stands in front of; looked up once per function. */
#define REAL(result, name, ...)                                                                              \
    static result (*real)(__VA_ARGS__);                                                                      \
    if (!real) {                                                                                             \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                                                           \
        if (!real) {                                                                                         \
            fprintf(stderr, "shim: no %s to stand in front of\n", #name);                                    \
            abort();                                                                                         \
        }                                                                                                    \
    }

#endif
