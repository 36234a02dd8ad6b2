/* SPDX-License-Identifier: Apache-2.0 */

/*
 * upload of the SWE-ReX protocol: a file, or a directory as a zip archive (minizip reads it), which
 * is extracted as Python's zipfile does: names lose what could lead out, what is there is
 * overwritten, nothing is deleted. Beyond it, execute bits are kept, and no symlink in the target
 * leads an entry out of it.
 */

#include <errno.h>
#include <fcntl.h>
#include <minizip/unzip.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/pytext.h"
#include "env/serve/rex.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- an archive in memory, for minizip ---- */

struct memory_file {
	const char *data;
	uint64_t len, pos;
};

static voidpf mem_open(voidpf arg, const void *name, int mode)
{
	return arg;
}

static uLong mem_read(voidpf arg, voidpf stream, void *buf, uLong size)
{
	struct memory_file *f = stream;
	uint64_t n = MIN(size, f->len - f->pos);

	memcpy(buf, f->data + f->pos, n);
	f->pos += n;
	return n;
}

static uLong mem_write(voidpf arg, voidpf stream, const void *buf, uLong size)
{
	return 0; /* never asked for */
}

static ZPOS64_T mem_tell(voidpf arg, voidpf stream)
{
	return ((struct memory_file *)stream)->pos;
}

static long mem_seek(voidpf arg, voidpf stream, ZPOS64_T off, int origin)
{
	struct memory_file *f = stream;
	uint64_t from = origin == ZLIB_FILEFUNC_SEEK_CUR   ? f->pos
			: origin == ZLIB_FILEFUNC_SEEK_END ? f->len
							   : 0;

	if (off > f->len || from + off > f->len)
		return -1;
	f->pos = from + off;
	return 0;
}

static int mem_close(voidpf arg, voidpf stream)
{
	return 0;
}

static int mem_error(voidpf arg, voidpf stream)
{
	return 0;
}

/* ---- extracting ---- */

/* As zipfile: empty, "." and ".." components go, in place. */
static void clean_name(char *name)
{
	char *to = name, *save = NULL;

	for (char *part = strtok_r(name, "/", &save); part; part = strtok_r(NULL, "/", &save)) {
		size_t len = strlen(part);

		if (strcmp(part, ".") == 0 || strcmp(part, "..") == 0)
			continue;
		if (to != name)
			*to++ = '/';
		memmove(to, part, len);
		to += len;
	}
	*to = '\0';
}

/* Makes every directory of path (with all: path itself, too) below root. */
static int make_below(int root, char *path, bool all)
{
	for (char *p = path;; p++) {
		char at = *p, *slash;
		int fd, r = 0;

		if ((at != '/' && at != '\0') || p == path)
			goto next;
		if (at == '\0' && !all)
			return 0;
		*p = '\0';
		fd = rex_open_below(root, path, O_PATH | O_DIRECTORY, 0);
		if (fd == -ENOENT) {
			_cleanup_close_ int parent = -1;

			slash = strrchr(path, '/');
			if (slash) {
				*slash = '\0';
				parent = rex_open_below(root, path, O_PATH | O_DIRECTORY, 0);
				*slash = '/';
			} else {
				parent = rex_open_below(root, ".", O_PATH | O_DIRECTORY, 0);
			}
			if (parent < 0)
				r = parent;
			else if (mkdirat(parent, slash ? slash + 1 : path, 0777) < 0 &&
				 errno != EEXIST)
				r = -errno;
		} else if (fd < 0) {
			r = fd;
		} else {
			(void)close(fd);
		}
		*p = at;
		if (r < 0)
			return r;
next:
		if (at == '\0')
			return 0;
	}
}

enum { EXTRACT_BAD_ZIP = 1, EXTRACT_METHOD }; /* outcomes */

static int extract_file(struct rex *rex, const struct http_request *q, unzFile zip, int root,
			const char *name, const unz_file_info64 *info)
{
	_cleanup_close_ int fd = -1;
	/* Unix wrote it: its mode is in the high half. */
	unsigned mode = info->version >> 8 == 3 ? (unsigned)(info->external_fa >> 16) : 0;
	char buf[STACK_BUFFER];
	struct stat st;
	int n;

	/* Others are handed out as they are, or mean what a build of minizip makes of them. */
	if (info->compression_method != 0 && info->compression_method != Z_DEFLATED)
		return EXTRACT_METHOD;
	if (unzOpenCurrentFile(zip) != UNZ_OK)
		return EXTRACT_BAD_ZIP;
	fd = rex_open_below(root, name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
	if (fd < 0) {
		(void)unzCloseCurrentFile(zip);
		return fd;
	}
	while ((n = unzReadCurrentFile(zip, buf, sizeof(buf))) > 0) {
		/* A thousand times what came may come out of it: the end does not wait for that. */
		int r = rex_ends(rex) ? -ECANCELED : rex_write_all(rex, q, fd, buf, (size_t)n);

		if (r < 0) {
			(void)!ftruncate(fd, 0); /* half of it is of no use, and takes room */
			(void)unzCloseCurrentFile(zip);
			return r;
		}
	}
	if (unzCloseCurrentFile(zip) != UNZ_OK || n < 0) /* a checksum that is wrong */
		return EXTRACT_BAD_ZIP;
	if (S_ISREG(mode) && (mode & 0111) && fstat(fd, &st) == 0 &&
	    fchmod(fd, (st.st_mode & 07777) | ((st.st_mode & 0444) >> 2 & mode)) < 0)
		return -errno;
	return close(TAKE_FD(fd)) < 0 ? -errno : 0;
}

static int extract_all(struct rex *rex, const struct http_request *q, unzFile zip, int root,
		       struct ply_text *ret_name)
{
	int r = unzGoToFirstFile(zip);

	while (r == UNZ_OK) {
		unz_file_info64 info;
		bool is_dir;
		int s;

		if (rex_ends(rex)) /* of many that are empty, too */
			return -ECANCELED;
		if (unzGetCurrentFileInfo64(zip, &info, NULL, 0, NULL, 0, NULL, 0) != UNZ_OK)
			return EXTRACT_BAD_ZIP;
		ply_text_free(ret_name);
		ret_name->data = calloc(1, info.size_filename + 2);
		if (!ret_name->data)
			return -ENOMEM;
		if (unzGetCurrentFileInfo64(zip, &info, ret_name->data, info.size_filename + 1,
					    NULL, 0, NULL, 0) != UNZ_OK)
			return EXTRACT_BAD_ZIP;
		ret_name->len = strlen(ret_name->data);
		is_dir = ret_name->len > 0 && ret_name->data[ret_name->len - 1] == '/';
		clean_name(ret_name->data);
		ret_name->len = strlen(ret_name->data);
		if (ret_name->len > 0) {
			s = make_below(root, ret_name->data, is_dir);
			if (s == 0 && !is_dir)
				s = extract_file(rex, q, zip, root, ret_name->data, &info);
			if (s != 0)
				return s;
		}
		r = unzGoToNextFile(zip);
	}
	return r == UNZ_END_OF_LIST_OF_FILE ? 0 : EXTRACT_BAD_ZIP;
}

/* Nothing but an end record that counts no entries: some versions of minizip do not open it. */
static bool is_empty_zip(const struct http_part *file)
{
	static const char end[12] = "PK\5\6";

	return file->len >= 22 && memcmp(file->data, end, sizeof(end)) == 0;
}

/* name: NULL when it is not known. */
static void raise_below(struct http_response *r, int err, const char *target, const char *name)
{
	struct ply_text path = { 0 };

	if (name && text_append_format(&path, "%s/%s", target, name) == 0)
		rex_raise_errno(r, err, path.data, path.len);
	else
		rex_raise_errno(r, err, target, strlen(target));
	ply_text_free(&path);
}

static void upload_zip(struct rex *rex, const struct http_request *q, const struct http_part *file,
		       const char *target, struct http_response *r)
{
	struct memory_file memory = { .data = file->data, .len = file->len };
	zlib_filefunc64_def io = { .zopen64_file = mem_open,
				   .zread_file = mem_read,
				   .zwrite_file = mem_write,
				   .ztell64_file = mem_tell,
				   .zseek64_file = mem_seek,
				   .zclose_file = mem_close,
				   .zerror_file = mem_error,
				   .opaque = &memory };
	_cleanup_close_ int root = -1;
	struct ply_text name = { 0 };
	unzFile zip = unzOpen2_64("", &io);
	int s;

	/* Some versions of minizip open what was cut within its end record, too. */
	if (!is_empty_zip(file) && (!zip || unzGoToFirstFile(zip) != UNZ_OK)) {
		(void)unzClose(zip);
		rex_raisef(r, "zipfile.BadZipFile", "File is not a zip file");
		return;
	}
	if (rex_make_directory(rex, target, r) < 0) {
		(void)unzClose(zip);
		return;
	}
	root = rex_open(rex, target, O_RDONLY | O_DIRECTORY, 0);
	if (root < 0) {
		rex_raise_errno(r, -root, target, strlen(target));
	} else {
		s = is_empty_zip(file) ? 0 : extract_all(rex, q, zip, root, &name);
		if (s < 0)
			raise_below(r, -s, target, name.data);
		else if (s == EXTRACT_METHOD)
			rex_raisef(r, "builtins.NotImplementedError",
				   "%s is neither stored nor deflated", name.data);
		else if (s == EXTRACT_BAD_ZIP)
			rex_raisef(r, "zipfile.BadZipFile", "the archive is damaged at %s",
				   name.data ? name.data : "its directory");
		else
			reply_json(r, 200, json_object());
	}
	(void)unzClose(zip);
	ply_text_free(&name);
}

/* ---- a file ---- */

static atomic_ullong uploads; /* so that two at once do not meet in one name */

/* 0 or -errno. Not mkstemp: the file is to have the mode that the umask leaves it. */
static int write_and_rename(int dir, const char *leaf, const struct http_part *file)
{
	_cleanup_close_ int fd = -1;
	char temp[64];
	int err;

	snprintf(temp, sizeof(temp), ".plyfs-upload-%lx-%llx", (unsigned long)getpid(),
		 (unsigned long long)atomic_fetch_add(&uploads, 1));
	fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	err = -write_all(fd, file->data, file->len);
	if (close(TAKE_FD(fd)) < 0 && !err)
		err = errno;
	if (!err && renameat(dir, temp, dir, leaf) < 0)
		err = errno;
	if (err)
		(void)unlinkat(dir, temp, 0);
	return -err;
}

static void upload_file(struct rex *rex, const struct http_part *file, const char *target,
			struct http_response *r)
{
	static const char name[] = "temp_file_transfer";
	_cleanup_close_ int dir = -1;
	const char *leaf = name;
	int s;

	if (rex_make_parents(rex, target, r) < 0)
		return;
	/* shutil.move into a directory keeps the name of what it moves. */
	dir = rex_open(rex, target, O_PATH | O_DIRECTORY, 0);
	if (dir >= 0 && faccessat(dir, name, F_OK, 0) == 0) {
		rex_raisef(r, "shutil.Error", "Destination path '%s/%s' already exists", target,
			   name);
		return;
	}
	if (dir < 0)
		dir = rex_open_parent(rex, target, &leaf);
	s = dir < 0 ? dir : write_and_rename(dir, leaf, file);
	if (s < 0)
		rex_raise_errno(r, -s, target, strlen(target));
	else
		reply_json(r, 200, json_object());
}

static bool is_word(const struct http_part *part, const char *const *words)
{
	for (; *words; words++)
		if (strlen(*words) == part->len && strcasecmp(part->data, *words) == 0)
			return true;
	return false;
}

/* As of a body that does not fit (model.h). */
static void add_detail(json_t *detail, const char *type, const char *name, const char *msg,
		       const struct http_part *input)
{
	/* Out of memory: one less. */
	(void)json_array_append_new(
		detail, json_pack("{s:s, s:[ss], s:s, s:o}", "type", type, "loc", "body", name,
				  "msg", msg, "input",
				  input ? rex_text(input->data, input->len) : json_null()));
}

void rex_upload(void *arg, const struct http_request *q, struct http_response *r)
{
	static const char *const yes[] = { "1", "true", "t", "yes", "y", "on", NULL };
	static const char *const no[] = { "", "0", "false", "f", "no", "n", "off", NULL };
	const struct http_part *file = http_part(q, "file"), *target = http_part(q, "target_path"),
			       *unzip = http_part(q, "unzip");
	_cleanup_free_ char *path = NULL;
	json_t *detail = json_array();

	if (!file)
		add_detail(detail, "missing", "file", "Field required", NULL);
	else if (!file->filename)
		add_detail(detail, "value_error", "file",
			   "Value error, Expected UploadFile, received: <class 'str'>", file);
	if (!target)
		add_detail(detail, "missing", "target_path", "Field required", NULL);
	if (unzip && !is_word(unzip, yes) && !is_word(unzip, no))
		add_detail(detail, "bool_parsing", "unzip",
			   "Input should be a valid boolean, unable to interpret input", unzip);
	if (json_array_size(detail) > 0) {
		reply_json(r, 422, json_pack("{s:O}", "detail", detail));
	} else if (strlen(target->data) != target->len) {
		rex_raisef(r, "builtins.ValueError", "embedded null byte");
	} else if (!(path = rex_path(target->data))) {
		rex_raisef(r, "builtins.MemoryError", "out of memory");
	} else if (unzip && is_word(unzip, yes)) {
		upload_zip(arg, q, file, path, r);
	} else {
		upload_file(arg, file, path, r);
	}
	json_decref(detail);
}
