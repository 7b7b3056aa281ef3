// SPDX-License-Identifier: Apache-2.0
// A second file of a program that includes everything, as the first one does: a definition that is not inline collides.
#include <comp/comp.hpp>
