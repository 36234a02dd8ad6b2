/* SPDX-License-Identifier: Apache-2.0 */

/* Not built yet: weak, so that a definition elsewhere wins. To be gone soon. */

#include "env/status.h"
#include "env/proc.h"
#include "env/env_internal.h"

#define WEAK __attribute__((weak))

WEAK int ply_tests_parse(const char *output,
	size_t len,
	const char *xml,
	size_t xml_len,
	const char *rule,
	struct ply_tests *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_new(const char *kind, struct ply_env **ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_set(struct ply_env *env, const char *option, const char *value)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK const char *ply_env_get(struct ply_env *env, const char *option)
{
	return NULL;
}

WEAK int ply_env_setup(struct ply_env *env)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_cleanup(struct ply_env *env)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK void ply_env_free(struct ply_env *env)
{

}

WEAK const char *ply_env_workdir(struct ply_env *env)
{
	return NULL;
}

WEAK int ply_env_read_file(struct ply_env *env, const char *path, struct ply_text *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_write_file(struct ply_env *env, const char *path, const void *data, size_t len)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_list_files(struct ply_env *env, const char *pattern, struct ply_list *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_run(struct ply_env *env,
	const char *command,
	double timeout,
	const char *shell,
	struct ply_result *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_run_tests(struct ply_env *env, struct ply_tests *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_checkpoint(struct ply_env *env, const char *label, struct ply_text *ret_id)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_restore(struct ply_env *env, const char *id)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_undo(struct ply_env *env)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_clone(struct ply_env *env, const char *workdir, struct ply_env **ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_diff(struct ply_env *env,
	const char *a,
	const char *b,
	const char *form,
	struct ply_text *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_upload(struct ply_env *env, const char *local, const char *path)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_download(struct ply_env *env, const char *path, const char *local)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK bool ply_env_has_session(struct ply_env *env)
{
	return false;
}

WEAK int ply_env_start_session(struct ply_env *env, const char *shell)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_end_session(struct ply_env *env)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_create_shell(struct ply_env *env, const char *name)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_list_shells(struct ply_env *env, struct ply_list *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_env_run_in_session(struct ply_env *env,
	const char *command,
	const char *shell,
	double timeout,
	struct ply_result *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_session_new(struct ply_env *env, const char *name, struct ply_session **ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_session_set(struct ply_session *s, const char *option, const char *value)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_session_start(struct ply_session *s, struct ply_text *ret_output)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_session_run(struct ply_session *s,
	const struct ply_session_run *run,
	struct ply_observation *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_session_interrupt(struct ply_session *s,
	double timeout,
	int tries,
	struct ply_text *ret_output)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK bool ply_session_alive(struct ply_session *s)
{
	return false;
}

WEAK int ply_session_end(struct ply_session *s)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK void ply_session_free(struct ply_session *s)
{

}

WEAK int ply_swe_from_config(const char *config, size_t len, struct ply_swe **ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_from_file(const char *path, struct ply_swe **ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK void ply_swe_free(struct ply_swe *swe)
{

}

WEAK int ply_swe_add_hook(struct ply_swe *swe, const struct ply_swe_hooks *hooks)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_start(struct ply_swe *swe)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_reset(struct ply_swe *swe)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_hard_reset(struct ply_swe *swe)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_close(struct ply_swe *swe)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_communicate(struct ply_swe *swe,
	const char *input,
	const struct ply_swe_communicate *options,
	struct ply_text *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_interrupt(struct ply_swe *swe)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_read_file(struct ply_swe *swe, const char *path, struct ply_text *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_write_file(struct ply_swe *swe, const char *path, const void *data, size_t len)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_set_env(struct ply_swe *swe, const char *const *pairs, size_t n)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK int ply_swe_execute(struct ply_swe *swe,
	const char *command,
	bool check,
	const char *const *env,
	size_t n_env,
	const char *cwd,
	struct ply_result *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}

WEAK struct ply_env *ply_swe_env(struct ply_swe *swe)
{
	return NULL;
}

WEAK int ply_quote(const char *word, struct ply_text *ret)
{
	return fail(PLY_UNSUPPORTED, "not built yet");
}
