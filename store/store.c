/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A store's life: making, opening, closing; and the small things that belong to no other file:
 * counters, pins, stats.
 *
 * A directory is a store once its format file is there: it is the last thing that store_init
 * writes, synced and renamed into place, so a crash before that leaves a directory that the next
 * init takes over. Opening takes the lock first; everything after it is this process's alone.
 */

#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/copy.h"
#include "store/journal.h"
#include "store/slab.h"
#include "store/stage.h"
#include "store/store_internal.h"

/* ---- making ---- */

/* What an init that was interrupted may have left. */
static int foreign(void *arg, const char *name)
{
	static const char *const names[] = { "format.new", "index", "journal", "lock", "packs",
					     "stage" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strcmp(name, names[i]) == 0)
			return 0;
	return EXISTS;
}

static int not_index(void *arg, const char *name)
{
	return strcmp(name, "data.mdb") == 0 || strcmp(name, "lock.mdb") == 0 ? 0 : EXISTS;
}

static int any(void *arg, const char *name)
{
	return EXISTS;
}

/*
 * Somebody else's, or one whose format file is lost, is not taken. An init makes the index last,
 * and puts nothing anywhere else.
 */
static int check_empty(int dir_fd)
{
	static const char *const empty[] = { "journal", "stage", "packs" };
	uint8_t uuid[16];
	int r;

	r = store_read_format(dir_fd, uuid);
	if (r != -ERR_NOT_A_STORE)
		return r >= 0 ? -ERR_STORE_EXISTS : r;

	r = os_each_name(dir_fd, ".", foreign, NULL);
	for (size_t i = 0; i < ARRAY_SIZE(empty) && (r == 0 || r == -ENOENT); i++)
		r = os_each_name(dir_fd, empty[i], any, NULL);
	if (r == 0 || r == -ENOENT) /* -ENOENT: of the packs */
		r = os_each_name(dir_fd, "index", r == 0 ? not_index : any, NULL);
	if (r == -ENOENT)
		r = 0;
	return r == EXISTS ? -ENOTEMPTY : r;
}

static int make_directory(int dir_fd, const char *name)
{
	int r = os_mkdirat(dir_fd, name, 0700);

	return r == -EEXIST ? 0 : r;
}

int store_write_format(int dir_fd, const uint8_t uuid[static 16])
{
	_cleanup_close_ int fd = -1;
	char text[FORMAT_TEXT_MAX];
	size_t len;
	int r;

	len = format_encode(uuid, text);

	r = os_openat(dir_fd, "format.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600, &fd);
	if (r < 0)
		return r;
	r = os_pwrite_full(fd, text, len, 0);
	if (r < 0)
		return r;
	r = os_fsync(fd);
	if (r < 0)
		return r;
	return os_renameat(dir_fd, "format.new", "format");
}

/* Whoever waits for the lock finds that its file is gone, and does not go on. */
static void unmake(int dir_fd)
{
	static const char *const files[] = { "format", "format.new", "index/data.mdb",
					     "index/lock.mdb", "lock" };
	static const char *const directories[] = { "index", "journal", "packs", "stage" };

	/* What stays is no store, and the next init takes it. */
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		(void)os_unlinkat(dir_fd, files[i], 0);
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
		(void)os_unlinkat(dir_fd, directories[i], AT_REMOVEDIR);
}

/* Under the lock, in a directory that has nothing but what an init left that was cut short. */
static int make(int dir_fd)
{
	struct index *index;
	uint8_t uuid[16];
	int r;

	r = make_directory(dir_fd, "packs");
	if (r == 0)
		r = make_directory(dir_fd, "stage");
	if (r == 0)
		r = make_directory(dir_fd, "index");
	if (r == 0)
		r = make_directory(dir_fd, "journal");
	if (r < 0)
		return r;
	/* Of one that was cut short: half an index would be damage. */
	r = os_unlinkat(dir_fd, "index/data.mdb", 0);
	if (r < 0 && r != -ENOENT)
		return r;
	r = index_open(dir_fd, NULL, &index);
	if (r < 0)
		return r;
	index_close(index);

	r = os_fsync(dir_fd);
	if (r == 0)
		r = os_random(uuid, sizeof(uuid));
	if (r == 0)
		r = store_write_format(dir_fd, uuid);
	return r < 0 ? r : os_fsync(dir_fd);
}

int store_init(int dir_fd)
{
	_cleanup_close_ int top_fd = -1, lock_fd = -1;
	struct stat st;
	int r;

	r = check_empty(dir_fd);
	if (r < 0)
		return r;

	/* For fsync; dir_fd may be O_PATH. */
	r = os_openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, &top_fd);
	if (r < 0)
		return r;
	if (fchmod(top_fd, 0700) < 0)
		return -errno;

	/* Of two that make a store here at the same time, one goes on. */
	r = os_openat(top_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600, &lock_fd);
	if (r < 0)
		return r;
	r = os_lock(lock_fd);
	if (r == -EWOULDBLOCK)
		return -ERR_STORE_BUSY;
	if (r < 0)
		return r;
	if (fstat(lock_fd, &st) < 0 || !st.st_nlink)
		return -ERR_STORE_BUSY;
	r = check_empty(top_fd);
	if (r < 0)
		return r;

	r = make(top_fd);
	if (r < 0)
		unmake(top_fd);
	return r;
}

/* ---- opening and closing ---- */

/* The format file is gone, or is none: a store that has packs can be salvaged. */
static int no_format(int dir_fd)
{
	return os_each_name(dir_fd, "packs", any, NULL) == EXISTS ? -ERR_FORMAT_DAMAGED
								   : -ERR_NOT_A_STORE;
}

int store_read_format(int dir_fd, uint8_t ret_uuid[static 16])
{
	_cleanup_close_ int fd = -1;
	char text[FORMAT_TEXT_MAX];
	struct stat st;
	size_t len;
	int r;

	r = os_openat(dir_fd, "format", O_RDONLY | O_CLOEXEC, 0, &fd);
	if (r == -ENOENT)
		return no_format(dir_fd);
	if (r < 0)
		return r;
	r = os_fstat(fd, &st);
	if (r < 0)
		return r;

	len = MIN((uint64_t)st.st_size, sizeof(text)); /* too long is damaged: format_decode */
	r = os_pread_full(fd, text, len, 0);
	if (r != 0)
		return r < 0 ? r : -ERR_FORMAT_DAMAGED;
	r = format_decode(text, len, ret_uuid);
	return r == -ERR_NOT_A_STORE ? no_format(dir_fd) : r;
}

/* Are the counters there? All or none of them are, but for damage to a key. */
static int count_counter(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	++*(unsigned *)arg;
	return 0;
}

/* guess: what does where the counter is damaged. */
static int read_meta(struct store *s, const char *key, uint64_t first, uint64_t guess,
		     uint64_t *ret)
{
	_cleanup_free_ void *value = NULL;
	size_t len;
	int r;

	r = index_get(s->index, INDEX_META, key, strlen(key), &value, &len);
	if (r == ABSENT && !s->counted) {
		*ret = first;
		return 0;
	}
	if (r == ABSENT || r == -ERR_INDEX_DAMAGED || (r == 0 && len != META_BYTES)) {
		*ret = guess;
		return note(&s->noter, 0, "counter '%s' is damaged, going on at %" PRIu64, key,
			    *ret);
	}
	if (r < 0)
		return r;
	*ret = get_le64(value);
	return 0;
}

static int read_counters(struct store *s)
{
	/*
	 * Any number beyond those in use will do, and nanoseconds since 1970 are beyond whatever
	 * counts objects, now and when this happens again.
	 */
	uint64_t seq, ino, lineage, guess = (uint64_t)os_now_ns();
	unsigned counters = 0;
	int r;

	r = index_each(s->index, INDEX_META, count_counter, &counters);
	if (r < 0)
		return r;
	s->counted = counters > 0;
	r = read_meta(s, "seq", 1, guess, &seq);
	if (r == 0)
		r = read_meta(s, "ino", 2, guess, &ino); /* 1 is every tree's root */
	if (r == 0)
		r = read_meta(s, "lineage", 1, guess, &lineage);
	if (r != 0)
		return r;

	/* A snapshot number has 48 bits; the table of snapshots raises it where needed. */
	s->seq_limit = seq <= SNAP_SEQ_MAX / 2 ? seq : 1;
	s->next_seq = MAX(s->seq_limit, 1);
	s->ino_limit = ino;
	s->next_ino = MAX(ino, 2);
	s->lineage_limit = lineage;
	s->next_lineage = MAX(lineage, 1);
	return 0;
}

/*
 * After the branches. Where it is damaged, less will do, but nothing beyond it: no branch's number
 * is beyond it, nor is one below a checkpoint, restore or beginning of the branch that is committed
 * (L2). What else is done again was done: drops, and what befell a branch that was dropped.
 */
static int read_table_lsn(struct store *s)
{
	uint64_t least = 0;

	for (size_t i = 0; i < s->entry_count; i++)
		least = MAX(least, s->entries[i]->lsn);
	return read_meta(s, "lsn", 0, least, &s->table_lsn);
}

/* Else it is a guess, or there was no commit yet, and the journal may well go on later. */
static bool has_table_lsn(struct store *s)
{
	_cleanup_free_ void *value = NULL;
	size_t len;

	return index_get(s->index, INDEX_META, "lsn", strlen("lsn"), &value, &len) == 0 &&
	       len == META_BYTES;
}

static int store_new(const struct noter *noter, struct store **ret)
{
	pthread_condattr_t monotonic;
	struct store *s = os_calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->slabs = slabs_new();
	if (!s->slabs) {
		free(s);
		return -ENOMEM;
	}
	s->dir_fd = s->lock_fd = -1;
	if (noter)
		s->noter = *noter;
	pthread_mutex_init(&s->keepers_lock, NULL);
	pthread_mutex_init(&s->copies_lock, NULL);
	pthread_cond_init(&s->copied, NULL);
	pthread_mutex_init(&s->table, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&s->wake, &monotonic);
	pthread_cond_init(&s->commit_wake, &monotonic);
	pthread_mutex_init(&s->commit_lock, NULL);
	pthread_cond_init(&s->done, &monotonic);
	s->collectable = true; /* nobody knows what a former process left */
	pthread_condattr_destroy(&monotonic);
	link_init(&s->queue);
	link_init(&s->rewrite);
	link_init(&s->doomed);
	link_init(&s->bad);
	link_init(&s->dead);
	link_init(&s->lru);
	link_init(&s->orphans);
	link_init(&s->doomed_branches);
	link_init(&s->bad_branches);
	link_init(&s->dead_branches);
	*ret = s;
	return 0;
}

static void free_snaps(struct link *head)
{
	struct link *l;

	while ((l = link_take_first(head)))
		snap_free(container_of(l, struct snap, link));
}

static void free_entries(struct link *head)
{
	struct link *l;

	while ((l = link_take_first(head)))
		entry_free(container_of(l, struct entry, link));
}

/* Everything in memory and the open files; the sealer has ended. Takes half-opened stores. */
static void store_free(struct store *s)
{
	if (s->stage)
		stage_end(s->stage); /* before the trees go: what they refer to may be pending */
	for (size_t i = 0; i < s->snap_slots; i++)
		if (s->snaps[i])
			snap_free(s->snaps[i]);
	free(s->snaps);
	free(s->buckets);
	free_snaps(&s->doomed);
	free_snaps(&s->bad);
	free_snaps(&s->dead);
	for (size_t i = 0; i < s->entry_count; i++)
		entry_free(s->entries[i]);
	free(s->entries);
	free_entries(&s->doomed_branches);
	free_entries(&s->bad_branches);
	free_entries(&s->dead_branches);
	slabs_free(s->slabs);
	while (s->pins) {
		struct pin *pin = s->pins;

		s->pins = pin->next;
		root_unref(pin->root);
		free(pin);
	}

	if (s->nodes)
		nodes_free(s->nodes);
	if (s->stage)
		stage_close(s->stage);
	table_close(s->tables);
	if (s->journal)
		journal_close(s->journal);
	if (s->chunks)
		chunks_close(s->chunks);
	if (s->index)
		index_close(s->index);
	closep(&s->lock_fd);
	closep(&s->dir_fd);
	pthread_cond_destroy(&s->copied);
	pthread_mutex_destroy(&s->copies_lock);
	pthread_cond_destroy(&s->done);
	pthread_cond_destroy(&s->wake);
	pthread_cond_destroy(&s->commit_wake);
	pthread_mutex_destroy(&s->commit_lock);
	pthread_mutex_destroy(&s->keepers_lock);
	pthread_mutex_destroy(&s->table);
	free(s);
}
static void store_freep(struct store **s)
{
	if (*s)
		store_free(*s);
}

/* 0, or EXISTS: an older format, to be written anew under the lock. */
static int lock_dir(int dir_fd, uint8_t ret_uuid[static 16], int *ret_fd)
{
	_cleanup_close_ int fd = -1;
	bool old_format;
	int r;

	/* Before the lock file is made in what is no store. */
	r = store_read_format(dir_fd, ret_uuid);
	if (r < 0)
		return r;
	old_format = r == EXISTS;
	r = os_openat(dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600, &fd);
	if (r < 0)
		return r;
	r = os_lock(fd);
	if (r == -EWOULDBLOCK)
		return -ERR_STORE_BUSY;
	if (r < 0)
		return r;
	*ret_fd = TAKE_FD(fd);
	return old_format ? EXISTS : 0;
}

int store_lock(int dir_fd, int *ret_fd)
{
	uint8_t uuid[16];
	int r = lock_dir(dir_fd, uuid, ret_fd);

	return r < 0 ? r : 0;
}

static int open_dir(struct store *s, int dir_fd, const struct store_options *options)
{
	int r = os_openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, &s->dir_fd);

	if (r < 0)
		return r;
	if (options && options->lock_fd > 0)
		r = store_read_format(s->dir_fd, s->uuid);
	else
		r = lock_dir(s->dir_fd, s->uuid, &s->lock_fd);
	if (r < 0)
		return r;
	s->id_key = get_le64(s->uuid) ^ get_le64(s->uuid + 8);
	if (r != EXISTS)
		return 0;
	/* From now on an older plyfs would overlook the journal. */
	r = store_write_format(s->dir_fd, s->uuid);
	return r < 0 ? r : os_fsync(s->dir_fd);
}

static int open_parts(struct store *s)
{
	struct stat st;
	int r = os_statat(s->dir_fd, "index/data.mdb", &st);

	if (r == -ENOENT) /* made by store_init: an empty one instead would lose everything */
		r = note(&s->noter, -ERR_INDEX_BROKEN, "index/data.mdb is missing");
	if (r == 0)
		r = index_open(s->dir_fd, &s->noter, &s->index);
	if (r == 0)
		r = chunks_open(s->dir_fd, s->index, &s->noter, &s->chunks);
	if (r == 0)
		r = table_open(s->chunks, s->index, s->uuid, &s->tables);
	if (r == 0)
		r = stage_open(s->dir_fd, s->chunks, &s->noter, &s->stage);
	if (r == 0)
		r = nodes_new(s->chunks, &s->noter, &s->nodes);
	return r;
}

/* What the index has, and what only the journal has. */
static int load(struct store *s, const struct store_options *options)
{
	int r = read_counters(s);

	if (r == 0)
		r = snap_load_all(s);
	if (r == 0)
		r = branch_load_all(s);
	if (r == 0)
		r = read_table_lsn(s);
	if (r == 0)
		r = journal_open(s->dir_fd, &s->noter, &s->journal);
	if (r < 0)
		return r;
	if (has_table_lsn(s))
		journal_follows(s->journal, s->table_lsn);
	return store_replay(s, options);
}

static int start(struct store *s, const struct store_options *options)
{
	int r;

	s->logging = !(options && options->journal_off);
	if (!s->logging && s->recovered_operations == 0)
		stage_hold(s->stage, NULL);
	r = branch_begin_logs(s);
	if (r < 0)
		return r;
	s->node_budget = options ? options->node_budget : NODE_BUDGET;
	chunks_limit_cache(s->chunks, s->node_budget / 4); /* without options: 64 MiB */
	s->commit_ns = (options ? options->commit_ms : COMMIT_INTERVAL_MS) * UINT64_C(1000000);
	r = sealer_start(s);
	if (r < 0)
		return r;
	r = committer_start(s);
	if (r < 0)
		(void)sealer_stop(s); /* nothing was changed yet */
	return r;
}

int store_open_with(int dir_fd, const struct store_options *options, const struct noter *noter,
		    struct store **ret)
{
	_cleanup_(store_freep) struct store *s = NULL;
	int r = store_new(noter, &s);

	if (r == 0)
		r = open_dir(s, dir_fd, options);
	if (r == 0)
		r = open_parts(s);
	if (r == 0)
		r = load(s, options);
	if (r == 0)
		r = start(s, options);
	if (r < 0)
		return r;
	store_commit_lost(s);
	*ret = TAKE_PTR(s);
	return 0;
}

int store_close(struct store *s)
{
	int r;

	if (!s)
		return 0;
	committer_stop(s);
	r = sealer_stop(s);
	store_free(s);
	return r;
}

/* ---- parts and counters ---- */

int store_dir_fd(struct store *s)
{
	return s->dir_fd;
}

const uint8_t *store_uuid(struct store *s)
{
	return s->uuid;
}

struct chunks *store_chunks(struct store *s)
{
	return s->chunks;
}

struct nodes *store_nodes(struct store *s)
{
	return s->nodes;
}

struct stage *store_stage(struct store *s)
{
	return s->stage;
}

const struct noter *store_noter(struct store *s)
{
	return &s->noter;
}

uint64_t store_take_ino(struct store *s, uint64_t n)
{
	return atomic_fetch_add_explicit(&s->next_ino, n, memory_order_relaxed);
}

void store_raise_ino(struct store *s, uint64_t floor)
{
	uint64_t next = atomic_load_explicit(&s->next_ino, memory_order_relaxed);

	while (next < floor && !atomic_compare_exchange_weak(&s->next_ino, &next, floor))
		; /* next was reloaded */
}

uint64_t store_take_lineage(struct store *s)
{
	return atomic_fetch_add_explicit(&s->next_lineage, 1, memory_order_relaxed);
}

int store_load_root(struct store *s, const struct name *name, struct root **ret)
{
	static const struct name zero;

	if (name_eq(name, &zero))
		return root_empty(s->nodes, ret);
	return root_by_name(s->nodes, name, ret);
}

/* ---- pins ---- */

static struct pin **find_pin(struct store *s, const struct root *root)
{
	struct pin **at = &s->pins;

	while (*at && (*at)->root != root)
		at = &(*at)->next;
	return at;
}

int store_pin_root(struct store *s, struct root *root)
{
	struct pin *pin;

	LOCK_GUARD(&s->table);
	pin = *find_pin(s, root);
	if (!pin) {
		pin = os_calloc(1, sizeof(*pin));
		if (!pin)
			return -ENOMEM;
		pin->root = root_ref(root);
		pin->next = s->pins;
		s->pins = pin;
	}
	pin->count++;
	return 0;
}

void store_unpin_root(struct store *s, struct root *root)
{
	_cleanup_(root_unrefp) struct root *unpinned = NULL;
	struct pin **at, *pin;

	LOCK_GUARD(&s->table);
	at = find_pin(s, root);
	pin = *at;
	if (!pin || --pin->count > 0)
		return;
	*at = pin->next;
	unpinned = pin->root;
	free(pin);
}

enum store_behind store_behind(struct store *s)
{
	uint64_t records = journal_bytes(s->journal);

	if (atomic_load_explicit(&s->retry_ns, memory_order_relaxed) != 0)
		return NOT_BEHIND; /* rounds fail: nobody is helped by waiting for one */
	if (records > JOURNAL_FAR_BEHIND || stage_is_far_behind(s->stage))
		return FAR_BEHIND;
	return stage_is_behind(s->stage) || records > JOURNAL_BEHIND ? IS_BEHIND : NOT_BEHIND;
}

uint64_t store_rounds(struct store *s)
{
	return atomic_load_explicit(&s->rounds, memory_order_relaxed);
}

/* ---- memory ---- */

void store_keeper_add(struct store *s, struct store_keeper *k)
{
	LOCK_GUARD(&s->keepers_lock);

	k->next = s->keepers;
	s->keepers = k;
}

void store_keeper_remove(struct store *s, struct store_keeper *k)
{
	LOCK_GUARD(&s->keepers_lock);

	for (struct store_keeper **at = &s->keepers; *at; at = &(*at)->next)
		if (*at == k) {
			*at = k->next;
			return;
		}
}

void store_limit_nodes(struct store *s)
{
	uint64_t nodes, bytes;

	nodes_stats(s->nodes, &nodes, &bytes);
	if (bytes <= s->node_budget)
		return;

	snap_let_go(s);
	LOCK_GUARD(&s->keepers_lock);
	for (struct store_keeper *k = s->keepers; k; k = k->next)
		k->let_go(k->arg);
	os_trim(); /* what others in the container could use; malloc would keep all of it */
}

static int seal_and_shed(struct tree *t)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	_cleanup_(shed_release) struct shed shed = { 0 };
	int r;

	r = tree_freeze(t, &root);
	if (r == 0)
		r = root_seal(root);
	if (r == 0)
		shed_tree(&shed, t);
	return r;
}

int store_import_limit(struct store *s, struct tree *t, uint64_t *limit)
{
	uint64_t nodes, bytes;
	int r;

	nodes_stats(s->nodes, &nodes, &bytes);
	if (bytes <= MAX(s->node_budget, *limit))
		return 0;

	r = seal_and_shed(t);
	if (r < 0)
		return r;
	os_trim();

	/* What remains is others'. With half the budget more, few nodes are written twice. */
	nodes_stats(s->nodes, &nodes, &bytes);
	*limit = bytes + s->node_budget / 2;
	return 0;
}

int store_read_limit(struct store *s, struct tree *t)
{
	uint64_t nodes, bytes;
	int r;

	nodes_stats(s->nodes, &nodes, &bytes);
	if (bytes <= s->node_budget && !tree_is_apart(t))
		return 0;
	/* A quarter, as for the chunks: who compares has two, and there may be more than one. */
	r = tree_read_apart(t, s->node_budget / 4);
	return r < 0 ? r : 0; /* what is not sealed yet will be in a second */
}

/* ---- stats ---- */

int store_is_there(const struct store *s)
{
	struct stat st;

	if (os_fstat(s->dir_fd, &st) < 0 || st.st_nlink > 0)
		return 0;
	/* Some filesystems count no links. */
	return faccessat(s->dir_fd, "format", F_OK, 0) < 0 ? -ERR_STORE_REMOVED : 0;
}

int store_stats(struct store *s, struct store_stats *ret)
{
	struct store_stats stats = { 0 };
	int r;

	r = chunks_stats(s->chunks, &stats.pack_bytes, &stats.packs, &stats.chunks);
	if (r < 0)
		return r;
	stage_stats(s->stage, &stats.unsealed_bytes, &stats.stage_bytes);
	nodes_stats(s->nodes, &stats.nodes, &stats.node_bytes);
	stats.node_budget = s->node_budget;
	stats.cache_bytes = chunks_cached(s->chunks, &stats.cache_limit);
	stats.journal_bytes = journal_bytes(s->journal);
	r = copies_stats(s, &stats.copies, &stats.copy_bytes);
	if (r < 0)
		return r;
	stats.recovered_operations = s->recovered_operations;
	stats.recovered_branches = s->recovered_branches;

	LOCK_GUARD(&s->table);
	stats.snapshots = snap_count_shown(s);
	stats.branches = s->entry_count;
	stats.unsealed_snapshots = s->queue_length;
	stats.failed = s->failed;
	stats.removed = store_is_there(s) < 0;
	*ret = stats;
	return 0;
}
