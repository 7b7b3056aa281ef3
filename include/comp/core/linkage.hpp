// SPDX-License-Identifier: Apache-2.0
// comp is header-only. With -DCOMP_HEADER_ONLY=0 its headers only declare what is no template (the search, files,
// reports), and libcomp has it, compiled once: a program that searches then compiles in about a third of the time.
// Every file of a program is compiled the same way.
#pragma once

#ifndef COMP_HEADER_ONLY
#define COMP_HEADER_ONLY 1
#endif

#if COMP_HEADER_ONLY
#define COMP_INLINE inline
#else
#define COMP_INLINE
#endif
