/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Keeping idle CPUs awake while requests follow each other closely, for all mounts of the process.
 *
 * A virtual machine gives an idle CPU back to its host, and 50 us and more pass until it has it
 * again: twice in each request whose client and reader run on different CPUs, several times what
 * the request itself takes. Where the haltpoll driver does so, a request to the kernel that no CPU
 * shall take any time to wake makes idle ones wait in a loop instead. That is root's to ask for.
 */

#include <stdbool.h>
#include <stdint.h>

#define AWAKE_DRIVER_FILE "/sys/devices/system/cpu/cpuidle/current_driver"
#define AWAKE_DRIVER "haltpoll"
#define AWAKE_DEVICE "/dev/cpu_dma_latency"
/* Where the device may not be opened, this does as much, if it is as long as a wake-up at least. */
#define AWAKE_SETTING "/sys/module/haltpoll/parameters/guest_halt_poll_ns"
#define AWAKE_SETTING_NS 200000

/* Looks, once in a process, whether it can be done here; else awake_request does nothing. */
void awake_start(void);
/* A request came at now_ns(), and others shortly before it. Costs next to nothing. */
void awake_request(uint64_t now);
/* Is it done here? How often the CPUs were asked to stay awake. */
bool awake_used(uint64_t *ret_times);
