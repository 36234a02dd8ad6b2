/* SPDX-License-Identifier: Apache-2.0 */

/* The keeper as a program: descriptor 3 is the socket to the process that it works for. */

#include "env/keeper.h"

int main(void)
{
	return keeper_main(3);
}
