/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whether it pays to look for the next request.
 *
 * On a CPU that others want, looking costs them the time, and the reader the time slice that
 * sleeping would have earned. Whether that is so is told by how long the *laps* of a look take, a
 * read(2) that finds nothing each. The first ends by letting others run, so a client that waits for
 * this very CPU goes on at once.
 *
 *   found, all laps short     we have the CPU to ourselves: trust
 *   a long lap                another thread ran: doubt
 *   nothing, and a request    it was the client who waited for this CPU: doubt
 *     as soon as we sleep
 *   a lap of SLICE_NS         a thread that computes took the CPU (or, in a virtual machine, the
 *                             host did): back off, by how long that was
 *   CROWD more that were there at once than had to be looked for: several clients, who want the
 *                             CPUs and keep us busy without looks: back off
 *
 * DOUBTS_MAX doubts in a row: to another CPU, if one is idle. As many again, or none is: back off,
 * twice as long each time until trust is back. Looks begin, at first and after each back-off, only
 * where a CPU is idle. fs/README.md, "Levers", has what it gains and costs.
 */

#include "fs/eager.h"
#include "store/base/util.h"

#define SWITCH_NS 3000 /* ten laps; less than two switches and any work between */
#define SLICE_NS 300000 /* no interrupt takes as long; time slices do */
#define DOUBTS_MAX 4 /* single ones are chance: a client that thinks for 25 us, a timer */
#define CROWD 32 /* one client: 6 in 100 are there at once; two: 77 */
#define BACK_OFF_MIN_NS 8000000 /* 100 times what so many looks cost at most */
#define BACK_OFF_LAPS 16 /* times the lap that was too long: a 16th of the time is lost at most */
#define BACK_OFF_MAX_NS 256000000 /* longer, and short bursts would have nothing of it */

static void back_off(struct eagerness *e, uint64_t now)
{
	uint64_t ns = MIN(MAX(e->back_off_ns, BACK_OFF_MIN_NS), BACK_OFF_MAX_NS);

	e->looks = false;
	e->not_before_ns = now + ns;
	e->back_off_ns = 2 * ns;
}

bool eager_may_look(struct eagerness *e, const struct eager_cpus *cpus, uint64_t now)
{
	if (!e->wanted || now < e->not_before_ns)
		return false;
	if (!e->looks) {
		e->looks = cpus->is_idle();
		if (!e->looks)
			e->not_before_ns = now + BACK_OFF_MIN_NS;
	}
	return e->looks;
}

static void doubt(struct eagerness *e, const struct eager_cpus *cpus, uint64_t now)
{
	if (++e->doubts < DOUBTS_MAX)
		return;
	e->doubts = 0;
	e->moved = !e->moved && cpus->is_idle() && cpus->move_over();
	if (!e->moved)
		back_off(e, now);
}

/* False: all its laps were short. */
static bool laps_were_long(struct eagerness *e, const struct eager_cpus *cpus,
			   const struct look *look)
{
	if (look->longest_ns > SLICE_NS) {
		e->back_off_ns = MAX(e->back_off_ns, BACK_OFF_LAPS * look->longest_ns);
		back_off(e, look->end_ns);
	} else if (look->longest_ns > SWITCH_NS) {
		doubt(e, cpus, look->end_ns);
	}
	return look->longest_ns > SWITCH_NS;
}

void eager_found(struct eagerness *e, const struct eager_cpus *cpus, const struct look *look)
{
	if (look->laps == 0) { /* which says nothing of this CPU */
		if (++e->crowd < CROWD)
			return;
		e->crowd = 0;
		back_off(e, look->end_ns);
		return;
	}
	e->crowd -= e->crowd > 0;
	if (laps_were_long(e, cpus, look))
		return;
	e->doubts = 0;
	e->moved = false;
	e->back_off_ns = 0;
}

void eager_slept(struct eagerness *e, const struct eager_cpus *cpus, const struct look *look,
		 bool came_at_once)
{
	if (!laps_were_long(e, cpus, look) && came_at_once)
		doubt(e, cpus, look->end_ns);
}
