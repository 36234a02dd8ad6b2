/* SPDX-License-Identifier: Apache-2.0 */

/* The reader pool (fs/readers.c), serving pipes whose requests are single letters. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "fs/mount.h"
#include "fs/readers.h"
#include "store/base/err.h"
#include "store/base/fault.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

/* Longer than any hand-over on a loaded machine; a test that waits so long has failed. */
#define PATIENCE_S 60

struct letters {
	struct served served;
	int in[2];          /* requests */
	sem_t open;         /* lets one blocked request go on */
	sem_t handled;      /* posted for each request that is done */
	sem_t blocked;      /* posted for each request that is about to wait */
	sem_t over;
	unsigned reading;   /* atomic: threads in read(), for R1 */
	unsigned max_reading;
	unsigned handling;  /* atomic: in a handler */
	unsigned left_over; /* handlers that were not done when over() came */
	pthread_t last;     /* who handled the last plain request */
};

static void wait_for(sem_t *sem)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	ck_assert_int_eq(sem_timedwait(sem, &until), 0);
}

/* It is posted only if something is wrong, and then at once: nearly always within 20 ms. */
static void expect_none(sem_t *sem)
{
	usleep(20 * 1000);
	ck_assert_int_eq(sem_trywait(sem), -1);
}

/*
 * 'p': plain; 'b': steps aside and waits; 'd': as 'b' for a disk; 'D': and then steps aside; 'B':
 * both at once; 'e': as 'd', twice. EOF: the end.
 */
static int serve_letter(struct served *s, const struct reader_buffers *buffers)
{
	struct letters *l = container_of(s, struct letters, served);
	unsigned reading = __atomic_add_fetch(&l->reading, 1, __ATOMIC_SEQ_CST);
	ssize_t n;

	if (reading > l->max_reading)
		l->max_reading = reading;
	n = read(l->in[0], buffers->request, 1);
	__atomic_sub_fetch(&l->reading, 1, __ATOMIC_SEQ_CST);
	if (n <= 0)
		return END;

	__atomic_add_fetch(&l->handling, 1, __ATOMIC_SEQ_CST);
	switch (buffers->request[0]) {
	case 'p':
		l->last = pthread_self();
		break;
	case 'B':
		readers_will_block();
		readers_step_aside();
		/* fall through */
	case 'b':
		readers_step_aside();
		sem_post(&l->blocked);
		sem_wait(&l->open);
		readers_step_aside();
		break;
	case 'e':
		readers_will_block();
		/* fall through */
	case 'd':
	case 'D':
		readers_will_block();
		sem_post(&l->blocked);
		sem_wait(&l->open);
		if (buffers->request[0] == 'D')
			readers_step_aside(); /* another one may lead by now */
		break;
	}
	buffers->reply[REPLY_BYTES - 1] = 1;
	__atomic_sub_fetch(&l->handling, 1, __ATOMIC_SEQ_CST);
	sem_post(&l->handled);
	return 0;
}

static void letters_over(struct served *s)
{
	struct letters *l = container_of(s, struct letters, served);

	l->left_over = __atomic_load_n(&l->handling, __ATOMIC_SEQ_CST);
	sem_post(&l->over);
}

static void letters_begin(struct letters *l,
			  int (*serve)(struct served *s, const struct reader_buffers *buffers))
{
	*l = (struct letters){ .served = { .serve_one = serve, .over = letters_over } };
	ck_assert_int_eq(pipe(l->in), 0);
	sem_init(&l->open, 0, 0);
	sem_init(&l->handled, 0, 0);
	sem_init(&l->blocked, 0, 0);
	sem_init(&l->over, 0, 0);
}

static void letters_start(struct letters *l, struct readers *rs)
{
	letters_begin(l, serve_letter);
	ck_assert_int_eq(readers_serve(rs, &l->served), 0);
}

static void ask(struct letters *l, const char *letters)
{
	ck_assert_int_eq(write(l->in[1], letters, strlen(letters)), (ssize_t)strlen(letters));
}

static void letters_end(struct letters *l)
{
	close(l->in[1]);
	wait_for(&l->over);
	ck_assert_uint_eq(l->left_over, 0);
	ck_assert_uint_le(l->max_reading, 1);
	close(l->in[0]);
}

static struct readers *pool(unsigned max_spare)
{
	struct readers *rs;

	ck_assert_int_eq(readers_new(max_spare, NULL, &rs), 0);
	return rs;
}

START_TEST(one_thread_serves_what_never_waits)
{
	struct readers *rs = pool(4);
	struct letters l;
	pthread_t first;

	letters_start(&l, rs);
	ask(&l, "p");
	wait_for(&l.handled);
	first = l.last;
	for (int i = 0; i < 1000; i++) {
		ask(&l, "p");
		wait_for(&l.handled);
		ck_assert(pthread_equal(first, l.last));
	}
	letters_end(&l);
	readers_free(rs);
}
END_TEST

START_TEST(a_waiting_request_does_not_stop_the_next)
{
	struct readers *rs = pool(4);
	struct letters l;

	letters_start(&l, rs);
	for (int i = 0; i < 200; i++) {
		ask(&l, "bBdp");
		for (int k = 0; k < 3; k++)
			wait_for(&l.blocked);
		wait_for(&l.handled); /* the p, while three wait */
		for (int k = 0; k < 3; k++)
			sem_post(&l.open);
		for (int k = 0; k < 3; k++)
			wait_for(&l.handled);
	}
	letters_end(&l);
	readers_free(rs);
}
END_TEST

START_TEST(disk_waits_beyond_the_spares_just_go_on)
{
	struct readers *rs = pool(1);
	struct letters l;

	letters_start(&l, rs);
	ask(&l, _i ? "DDp" : "ddp");
	wait_for(&l.blocked);
	wait_for(&l.blocked);
	expect_none(&l.handled); /* nobody reads the p */
	sem_post(&l.open); /* whichever goes on: both lead to somebody reading again (R2) */
	wait_for(&l.handled);
	wait_for(&l.handled);
	sem_post(&l.open);
	wait_for(&l.handled);
	expect_none(&l.handled); /* time for a second one that would read (R1) */
	letters_end(&l);
	readers_free(rs);
}
END_TEST

/* By their name, as a sanitizer has threads of its own. */
static unsigned readers_alive(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/task");

	for (struct dirent *e; (e = readdir(d));) {
		char name[64] = "";
		_cleanup_close_ int fd = openat(dirfd(d), e->d_name, O_PATH);
		_cleanup_close_ int comm = openat(fd, "comm", O_RDONLY);

		n += read(comm, name, sizeof(name) - 1) > 0 && !strcmp(name, "plyfs-reader\n");
	}
	closedir(d);
	return n;
}

/* In the end there are so many. */
static void expect_readers(unsigned n)
{
	for (int ms = 0; readers_alive() != n; ms += 10) {
		ck_assert_msg(ms < PATIENCE_S * 1000, "%u readers stay, and not %u",
			      readers_alive(), n);
		usleep(10 * 1000);
	}
}

START_TEST(who_steps_aside_behind_an_idle_thread_makes_no_second_leader)
{
	struct readers *rs = pool(0);
	struct letters l, other;

	letters_start(&l, rs);
	letters_start(&other, rs);
	ask(&l, "D");
	wait_for(&l.blocked); /* and found nobody to lead */
	letters_end(&other); /* whose thread is idle then */
	ask(&l, "p");
	wait_for(&l.handled);
	sem_post(&l.open);
	wait_for(&l.handled);
	expect_none(&l.handled); /* time for a second one that would read (R1) */
	letters_end(&l);
	readers_free(rs);
}
END_TEST

START_TEST(who_could_not_be_followed_twice_is_followed_once)
{
	struct readers *rs = pool(0);
	struct letters l, other;

	letters_start(&l, rs);
	letters_start(&other, rs);
	ask(&l, "e");
	wait_for(&l.blocked); /* and found nobody to lead, twice */
	sem_post(&l.open);
	wait_for(&l.handled);
	letters_end(&other); /* whose thread looks for what waits for one */
	ask(&l, "pp");
	wait_for(&l.handled);
	wait_for(&l.handled);
	expect_none(&l.handled); /* time for a second one that would read (R1) */
	letters_end(&l);
	readers_free(rs);
}
END_TEST

START_TEST(kernel_waits_find_a_thread_beyond_the_spares)
{
	struct readers *rs = pool(0);
	struct letters l;

	letters_start(&l, rs);
	ask(&l, "BbBbBbBbp");
	for (int i = 0; i < 8; i++)
		wait_for(&l.blocked);
	wait_for(&l.handled);
	for (int i = 0; i < 8; i++)
		sem_post(&l.open);
	for (int i = 0; i < 8; i++)
		wait_for(&l.handled);
	expect_readers(1); /* R5 */
	letters_end(&l);
	expect_readers(0);
	readers_free(rs);
}
END_TEST

START_TEST(who_could_not_be_served_leaves_nothing)
{
	struct readers *rs = pool(0);
	struct letters l;
	int r = -ENOMEM;

	letters_begin(&l, serve_letter);
	for (int n = 0; r < 0; n++) {
		fault_arm(n, 1, ENOMEM);
		r = readers_serve(rs, &l.served);
		fault_disarm();
		ck_assert(r == 0 || (r == -ENOMEM && l.served.users == 0 && !l.served.leader));
	}
	ask(&l, "b");
	wait_for(&l.blocked);
	sem_post(&l.open);
	wait_for(&l.handled);
	expect_readers(1);
	letters_end(&l);
	readers_free(rs);
}
END_TEST

START_TEST(over_comes_after_the_last_request_is_done)
{
	struct readers *rs = pool(4);
	struct letters l;

	letters_start(&l, rs);
	ask(&l, "bb");
	wait_for(&l.blocked);
	wait_for(&l.blocked);
	close(l.in[1]);
	expect_none(&l.over);
	sem_post(&l.open);
	sem_post(&l.open);
	wait_for(&l.over);
	ck_assert_uint_eq(l.left_over, 0);
	close(l.in[0]);
	readers_free(rs);
}
END_TEST

START_TEST(sixty_four_share_the_pool)
{
	static struct letters l[64];
	struct readers *rs = pool(4);

	for (size_t i = 0; i < ARRAY_SIZE(l); i++)
		letters_start(&l[i], rs);
	for (int round = 0; round < 20; round++) {
		for (size_t i = 0; i < ARRAY_SIZE(l); i++)
			ask(&l[i], i % 8 == 0 ? "bp" : "pp");
		for (size_t i = 0; i < ARRAY_SIZE(l); i++) {
			wait_for(&l[i].handled);
			sem_post(&l[i].open);
			if (i % 8 != 0)
				sem_wait(&l[i].open);
			wait_for(&l[i].handled);
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(l); i++)
		letters_end(&l[i]);
	readers_free(rs);
}
END_TEST

/* ---- slots ---- */

#define SLOT_BYTES (4096 + DATA_BYTES)

/* What slots come from. Served: by threads that have one now. */
static struct slots {
	pthread_mutex_t lock;
	_Atomic unsigned taken, given, served, given_up; /* looked at while threads go on */
	bool none;
	int fail_in; /* requests */
	uint8_t *lost; /* of 'l' */
} slots;

static _Thread_local uint8_t *serving;
static _Thread_local bool beside;

static uint8_t *slot_take(void *arg)
{
	LOCK_GUARD(&slots.lock);

	if (slots.none)
		return NULL;
	slots.taken++;
	return aligned_alloc(4096, SLOT_BYTES);
}

static void slot_give(void *arg, uint8_t *slot)
{
	LOCK_GUARD(&slots.lock);

	slots.given++;
	free(slot);
}

static void slot_serve(void *arg, uint8_t *slot)
{
	LOCK_GUARD(&slots.lock);

	slots.served += slot != NULL;
	slots.served -= serving != NULL;
	serving = slot;
	beside = false;
}

static void slot_serve_beside(void *arg, uint8_t *slot)
{
	ck_assert_ptr_nonnull(slot);
	slot_serve(arg, slot);
	beside = true;
}

static int slot_served(void *arg)
{
	return slots.fail_in > 0 && --slots.fail_in == 0 ? -EIO : 0;
}

static void slot_give_up(void *arg, uint8_t *slot)
{
	slots.given_up++;
	ck_assert_ptr_null(serving);
	free(slot);
}

static bool in_slot(const struct reader_buffers *buffers)
{
	return serving && buffers->request == serving + 4096 - HEADER_BYTES;
}

/* Each says so of the other. */
static void expect_in_slot(const struct reader_buffers *buffers, bool yes)
{
	ck_assert(in_slot(buffers) == yes && (!serving || beside == !yes));
}

/*
 * 'w': reads on into a warm buffer, and its slot; 'c': into its own; 'l': the slot is lost; 's':
 * stays warm if it may; 'k': waits warm. What is posted as handled is done, or failed.
 */
static unsigned stay_warm;

static int serve_warm(struct served *s, const struct reader_buffers *buffers)
{
	struct letters *l = container_of(s, struct letters, served);
	char letter;

	if (read(l->in[0], &letter, 1) <= 0)
		return END;
	readers_warm();
	expect_in_slot(buffers, false);
	buffers->request[0] = (uint8_t)letter; /* the ends of both have to be there */
	buffers->request[REQUEST_BYTES - 1] = 1;
	expect_in_slot(buffers, readers_read_into_slot(now_ns()));
	ck_assert(slots.none || in_slot(buffers));
	readers_touch_slot((size_t)letter * REQUEST_BYTES); /* its end at most */
	switch (letter) {
	case 'c':
		readers_cool();
		readers_cool();
		ck_assert(!in_slot(buffers) && !serving);
		break;
	case 'l':
		slots.lost = serving; /* nobody gives it back */
		ck_assert(readers_lost_slot());
		ck_assert(!readers_lost_slot() && serving && serving != slots.lost);
		expect_in_slot(buffers, false);
		break;
	case 's':
		if (readers_stay_warm() && readers_stay_warm())
			__atomic_add_fetch(&stay_warm, 1, __ATOMIC_SEQ_CST);
		break;
	case 'k':
		sem_post(&l->blocked);
		sem_wait(&l->open);
		break;
	}
	buffers->request[0] = (uint8_t)letter;
	buffers->request[REQUEST_BYTES - 1] = 1;
	readers_read_beside();
	expect_in_slot(buffers, false);
	buffers->request[REQUEST_BYTES - 1] = 1;
	sem_post(&l->handled);
	return 0;
}

static struct readers *warm_pool(void)
{
	const struct reader_memory memory = { .take = slot_take, .give = slot_give,
					      .serve = slot_serve,
					      .serve_beside = slot_serve_beside,
					      .served = slot_served, .give_up = slot_give_up };
	struct readers *rs;

	slots = (struct slots){ .lock = PTHREAD_MUTEX_INITIALIZER };
	stay_warm = 0;
	ck_assert_int_eq(readers_new(1, &memory, &rs), 0);
	return rs;
}

static void warm_start(struct letters *l, struct readers *rs)
{
	letters_begin(l, serve_warm);
	ck_assert_int_eq(readers_serve(rs, &l->served), 0);
}

static void ask_each(struct letters *l, const char *letters)
{
	ask(l, letters);
	for (size_t i = 0; i < strlen(letters); i++)
		wait_for(&l->handled);
}

START_TEST(a_slot_serves_again_and_is_given_back)
{
	struct readers *rs = warm_pool();
	struct letters l;

	warm_start(&l, rs);
	ask_each(&l, "wwcwccw");
	ck_assert_uint_eq(slots.taken, 1);
	ck_assert_uint_eq(slots.served, 1);
	letters_end(&l);
	ck_assert_uint_eq(slots.served, 0);
	warm_start(&l, rs);
	ask_each(&l, "w");
	ck_assert_uint_eq(slots.taken, 1);
	letters_end(&l);
	ck_assert_uint_eq(slots.given, 0);
	readers_free(rs);
	ck_assert_uint_eq(slots.given, 1);
}
END_TEST

START_TEST(a_slot_that_is_lost_is_nobodys)
{
	struct readers *rs = warm_pool();
	struct letters l;

	warm_start(&l, rs);
	ask_each(&l, "wl");
	free(slots.lost);
	ask_each(&l, "w");
	ck_assert_uint_eq(slots.taken, 2);
	letters_end(&l);
	readers_free(rs);
	ck_assert_uint_eq(slots.given, 1);
	ck_assert_uint_eq(slots.given_up, 0);
}
END_TEST

START_TEST(a_slot_whose_data_cannot_be_kept_is_given_up)
{
	struct readers *rs = warm_pool();
	struct letters l;

	slots.fail_in = 2;
	warm_start(&l, rs);
	ask_each(&l, "wwww");
	letters_end(&l);
	ck_assert_uint_eq(slots.given_up, 1);
	ck_assert_uint_eq(slots.taken, 2);
	ck_assert_uint_eq(slots.served, 0);
	readers_free(rs);
	ck_assert_uint_eq(slots.given, 1);
}
END_TEST

/* As many as wait at the same time are warm; four are kept, and eight may wait so. */
START_TEST(few_stay_warm)
{
	struct letters l[10];
	struct readers *rs = warm_pool();

	for (int round = 1; round <= 2; round++) {
		for (size_t i = 0; i < ARRAY_SIZE(l); i++) {
			warm_start(&l[i], rs);
			ask(&l[i], "sk");
			wait_for(&l[i].blocked);
		}
		ck_assert_uint_eq(stay_warm, (unsigned)round * 8);
		for (size_t i = 0; i < ARRAY_SIZE(l); i++) {
			sem_post(&l[i].open);
			wait_for(&l[i].handled);
			wait_for(&l[i].handled);
			letters_end(&l[i]);
		}
		ck_assert_uint_eq(slots.served, 0);
		ck_assert_uint_eq(slots.taken - slots.given, 4);
	}
	readers_free(rs);
	ck_assert_uint_eq(slots.taken, slots.given);
}
END_TEST

START_TEST(without_slots_pages_are_the_readers_own)
{
	struct readers *rs = warm_pool();
	struct letters l;

	slots.none = true;
	warm_start(&l, rs);
	ask_each(&l, "wcwcw");
	letters_end(&l);
	readers_free(rs);
	ck_assert_uint_eq(slots.taken + slots.given, 0);
	readers_warm(); /* elsewhere they do nothing */
	readers_cool();
	readers_read_beside();
	ck_assert(!readers_lost_slot() && !readers_read_into_slot(now_ns()));
	ck_assert(readers_stay_warm());
}
END_TEST

START_TEST(stepping_aside_elsewhere_does_nothing)
{
	readers_will_block();
	readers_step_aside();
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("pool");

	tcase_set_timeout(tc, 240);
	tcase_add_test(tc, one_thread_serves_what_never_waits);
	tcase_add_test(tc, a_waiting_request_does_not_stop_the_next);
	tcase_add_loop_test(tc, disk_waits_beyond_the_spares_just_go_on, 0, 2);
	tcase_add_test(tc, who_steps_aside_behind_an_idle_thread_makes_no_second_leader);
	tcase_add_test(tc, who_could_not_be_followed_twice_is_followed_once);
	tcase_add_test(tc, kernel_waits_find_a_thread_beyond_the_spares);
	tcase_add_test(tc, who_could_not_be_served_leaves_nothing);
	tcase_add_test(tc, over_comes_after_the_last_request_is_done);
	tcase_add_test(tc, sixty_four_share_the_pool);
	tcase_add_test(tc, a_slot_serves_again_and_is_given_back);
	tcase_add_test(tc, a_slot_that_is_lost_is_nobodys);
	tcase_add_test(tc, a_slot_whose_data_cannot_be_kept_is_given_up);
	tcase_add_test(tc, few_stay_warm);
	tcase_add_test(tc, without_slots_pages_are_the_readers_own);
	tcase_add_test(tc, stepping_aside_elsewhere_does_nothing);
	return run_case("readers", tc);
}
