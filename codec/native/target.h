// Compile a whole file for a newer processor: SKERRY_TARGET_BEGIN("...") after the last #include,
// SKERRY_TARGET_END after the code.
#ifndef SKERRY_TARGET_H
#define SKERRY_TARGET_H

#define SKERRY_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define SKERRY_TARGET_BEGIN(features) \
  SKERRY_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define SKERRY_TARGET_END SKERRY_PRAGMA(clang attribute pop)
#else
#define SKERRY_TARGET_BEGIN(features) SKERRY_PRAGMA(GCC push_options) SKERRY_PRAGMA(GCC target(features))
#define SKERRY_TARGET_END SKERRY_PRAGMA(GCC pop_options)
#endif

#endif
