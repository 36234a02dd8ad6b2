/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Of the native protocol what needs a view and no environment; see view.c. */

#include "env/serve/serve.h"

/* When the current directory lies in a view that we may control: offers it. Is it so? */
bool serve_view(struct serve_options *o);
