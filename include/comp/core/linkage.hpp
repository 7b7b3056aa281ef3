// SPDX-License-Identifier: Apache-2.0
// comp is header-only by default. With -DCOMP_HEADER_ONLY=0 its headers only declare the functions that are no
// templates (the search, files, reports), and the library libcomp has them compiled: a program that searches then
// compiles in about a third of the time. All files of a program must be compiled the same way.
#pragma once

#ifndef COMP_HEADER_ONLY
#define COMP_HEADER_ONLY 1
#endif

#if COMP_HEADER_ONLY
#define COMP_INLINE inline
#else
#define COMP_INLINE
#endif
