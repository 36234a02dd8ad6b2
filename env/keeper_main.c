/* SPDX-License-Identifier: Apache-2.0 */

/* The keeper as a program of its own. */

#include "env/keeper.h"

int main(void)
{
	return keeper_program();
}
