/* SPDX-License-Identifier: Apache-2.0 */

/*
 * K1 to K5, by a kill at each single store to the memo: a child does what a daemon does, with the
 * memo's pages write-protected, and is gone at the n-th store, for each n. Another one goes on with
 * what it left: what was in flight is sent again. So each request was done once, and each node id
 * means what it meant.
 */

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "tests/unit/memo_fixture.h"

#ifdef __x86_64__

/* ---- a process that is killed at a store ---- */

#define TRAP_FLAG 0x100 /* of x86: a SIGTRAP behind the next instruction */
#define PAGE ((size_t)4096)

static long stores_left;

/* Head, receipts and first slots: what the tests use. In handlers, too: no place for Check. */
static void protect(int prot)
{
	const struct memo *m = view_memo(view);
	uint8_t *end = (uint8_t *)m->nodes + PAGE;

	if (mprotect(m->head, ((size_t)(end - (uint8_t *)m->head) + PAGE - 1) / PAGE * PAGE,
		     prot) != 0)
		abort();
}

static void on_store(int sig, siginfo_t *info, void *arg)
{
	ucontext_t *context = arg;

	if (stores_left-- == 0)
		(void)raise(SIGKILL);
	protect(PROT_READ | PROT_WRITE);
	context->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_stored(int sig, siginfo_t *info, void *arg)
{
	ucontext_t *context = arg;

	context->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	protect(PROT_READ);
}

static void trap_stores(long n)
{
	struct sigaction before = { .sa_sigaction = on_store, .sa_flags = SA_SIGINFO };
	struct sigaction behind = { .sa_sigaction = on_stored, .sa_flags = SA_SIGINFO };

	stores_left = n;
	ck_assert_int_eq(sigaction(SIGSEGV, &before, NULL), 0);
	ck_assert_int_eq(sigaction(SIGTRAP, &behind, NULL), 0);
	protect(PROT_READ);
}

/* ---- what is asked of it ---- */

/* Where both processes see it: what the kernel knows. */
static struct {
	unsigned sent, answered; /* requests */
	uint64_t nodes[8], id, other;
} *known;

enum which { DIR, OLD, GONE, MADE, OTHER };

static void ok(int r)
{
	ck_assert_msg(r >= 0, "request %u: %s", known->answered, err_name(r));
}

static void known_node(enum which which, int r, const struct entry *e)
{
	ok(r);
	if (known->nodes[which])
		ck_assert_uint_eq(e->node, known->nodes[which]);
	known->nodes[which] = e->node;
}

static void look_up(enum which which, uint64_t dir, const char *name)
{
	struct entry e;

	known_node(which, view_lookup(view, dir, name, strlen(name), &e), &e);
}

static void make_known(enum which which, uint64_t dir, const char *name, uint32_t mode)
{
	struct entry e;

	known_node(which, make(dir, name, mode, &e), &e);
}

/* Nearly all of these fail, or do more, when they are done twice. */
static void change_things(unsigned i)
{
	const uint64_t *n = known->nodes;
	struct restore_info info;
	struct entry e;
	uint64_t id;

	switch (i) {
	case 0:
		make_known(DIR, ROOT_NODE, "dir", S_IFDIR | 0755);
		break;
	case 1:
		make_known(OLD, n[DIR], "old", S_IFREG | 0644);
		break;
	case 2:
		put(n[OLD], 0, "old");
		break;
	case 3:
		make_known(GONE, n[DIR], "gone", S_IFREG | 0644);
		break;
	case 4:
		ok(view_setxattr(view, n[OLD], "user.a", "a", 1, 0));
		break;
	case 5:
		ok(view_checkpoint(view, "", false, &known->id));
		break;
	case 6:
		ok(view_removexattr(view, n[OLD], "user.a"));
		break;
	case 7:
		ok(view_unlink(view, n[DIR], "gone", 4)); /* it is open */
		break;
	case 8:
		ok(view_rename(view, n[DIR], "old", 3, ROOT_NODE, "new", 3, 0));
		break;
	case 9:
		ok(view_link(view, n[OLD], n[DIR], "link", 4, &e));
		ck_assert_uint_eq(e.node, n[OLD]);
		break;
	case 10:
		ok(view_fork(view, "side"));
		break;
	case 11:
		ok(view_restore(view, known->id, &info));
		break;
	case 12: /* and he has it open from now on, as it was */
		look_up(MADE, n[DIR], "old");
		break;
	case 13:
		ok(view_undo(view, &id, &info));
		break;
	case 14:
		view_forget(view, n[GONE], 1);
		break;
	}
}

static void assert_things(void)
{
	const uint64_t *n = known->nodes;
	struct entry e;

	ck_assert_uint_eq(node_of(ROOT_NODE, "dir"), n[DIR]);
	assert_holds(node_of(ROOT_NODE, "new"), "old");
	ck_assert_uint_eq(node_of(n[DIR], "link"), node_of(ROOT_NODE, "new"));
	ck_assert_int_eq(view_lookup(view, n[DIR], "old", 3, &e), -ENOENT);
	ck_assert_int_eq(view_lookup(view, n[DIR], "gone", 4, &e), -ENOENT);
	assert_holds(n[OLD], "old");
	assert_holds(n[MADE], "old");
	ck_assert_uint_ne(node_of(ROOT_NODE, "new"), n[MADE]);
	ck_assert_uint_eq(snap_count(store), 2);
	ck_assert_int_eq(view_getattr(view, n[GONE], &e.inode), -ESTALE);
}

static bool may_be_dead; /* OTHER: its number was being changed (K1) */

/* There and back between two lineages, in which the directories have each other's numbers. */
static void change_lineages(unsigned i)
{
	const uint64_t *n = known->nodes;
	struct restore_info info;
	struct entry e;

	switch (i) {
	case 0:
		make_known(DIR, ROOT_NODE, "d", S_IFDIR | 0755);
		make_known(OLD, n[DIR], "of d", S_IFREG | 0644);
		ok(make(ROOT_NODE, "x", S_IFDIR | 0755, &e));
		ok(make(e.node, "of x", S_IFREG | 0644, &(struct entry){ 0 }));
		view_forget(view, e.node, 1);
		ok(view_checkpoint(view, "", false, &known->id));
		known->other = make_other(known->id, 0, 2, (const char *const[][2]){
			{ "x", "y" }, { "d", "x" } });
		break;
	case 1:
		ok(view_restore(view, known->other, &info));
		break;
	case 2:
		look_up(OTHER, ROOT_NODE, "x");
		ck_assert_uint_ne(n[OTHER], n[DIR]);
		break;
	case 3:
		ck_assert_int_eq(view_lookup(view, n[DIR], "of d", 4, &e), -ENOENT);
		break;
	case 4:
		ok(view_restore(view, known->id, &info));
		break;
	case 5:
		if (!may_be_dead)
			ok(view_lookup(view, n[OTHER], "of x", 4, &e));
		break;
	}
}

static void assert_lineages(void)
{
	const uint64_t *n = known->nodes;

	ck_assert_uint_eq(node_of(n[DIR], "of d"), n[OLD]);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), n[DIR]);
	if (!may_be_dead)
		ck_assert_uint_eq(node_of(ROOT_NODE, "x"), n[OTHER]);
}

static const struct script {
	unsigned n, first; /* requests, and with which the kills begin */
	void (*request)(unsigned i);
	void (*assert_done)(void);
} scripts[] = {
	{ 15, 0, change_things, assert_things },
	{ 6, 1, change_lineages, assert_lineages },
};

#define STEP 4 /* tests for each, as one has four minutes */

static void serve(const struct script *s, unsigned i, bool again)
{
	known->sent = i + 1;
	ask(i + 2, again);
	s->request(i);
	known->answered = i + 1;
	memo_request_end();
}

/* False: it came to the end, as it has no more stores. */
static bool killed_at_store(const struct script *s, long n)
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		begin();
		ck_assert_int_eq(store_sync(store), 0); /* or lost inode numbers come again */
		for (unsigned i = 0; i < s->n; i++) {
			if (i == s->first)
				trap_stores(n);
			serve(s, i, false);
		}
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL),
		      "store %ld: %x", n, status);
	return status != 0;
}

/* Whoever needs a node id next has the places that are free, before there are more of them. */
static void assert_no_slot_lost(void)
{
	const uint32_t before = first->head->n_slots;
	struct entry e;
	char name[16];

	for (unsigned i = 0; first->head->n_slots == before; i++) {
		snprintf(name, sizeof(name), "fill%u", i);
		ok(make(ROOT_NODE, name, S_IFREG | 0644, &e));
	}
	for (uint32_t i = 1; i < first->head->n_slots; i++)
		ck_assert_uint_ne(first->nodes[i].node, 0);
}

static void go_on(const struct script *s)
{
	begin();
	ok(view_finish_restore(view));
	if (known->sent > known->answered)
		serve(s, known->answered, true);
	memo_request_is_new(view_memo(view));
	for (unsigned i = known->answered; i < s->n; i++)
		serve(s, i, false);
	s->assert_done();
	assert_no_slot_lost();
	end();
}

START_TEST(a_kill_at_any_store_leaves_something_right)
{
	const struct script *s = &scripts[_i / STEP];
	bool more = true;

	known = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(known, MAP_FAILED);
	for (long n = _i % STEP; more; n += STEP) {
		memset(known, 0, sizeof(*known));
		may_be_dead = false;
		more = killed_at_store(s, n);
		may_be_dead = first->nodes[(uint32_t)known->nodes[OTHER]].base == UINT64_MAX;
		go_on(s);
		memo_teardown();
		memo_setup();
	}
}
END_TEST

#endif

int main(void)
{
	TCase *c = tcase_create("memo kill");

	tcase_add_checked_fixture(c, memo_setup, memo_teardown);
	tcase_set_timeout(c, 240);
#ifdef __x86_64__
	tcase_add_loop_test(c, a_kill_at_any_store_leaves_something_right, 0,
			    STEP * ARRAY_SIZE(scripts));
#endif
	return run_case("memo_kill", c);
}
