// SPDX-License-Identifier: Apache-2.0
// expect: nothing
#include "whole.hpp"

whole::search_of<whole::backend> least;
whole::search_of<whole::capable_backend> most;
whole::classified_by<whole::policy> classified;
whole::searched_by<whole::strategy> searched;
whole::watched_by<whole::observer> watched;
