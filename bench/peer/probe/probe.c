/* probe ROOT [cleanup|once]: how fast can one go? Times, as one JSON line, the least work that a reconstruction
 * (or, with "cleanup", an unmount of everything below ROOT) cannot avoid, on one thread, with no bookkeeping.
 *
 *   mountinfo_read   read /proc/self/mountinfo to memory (the kernel formats it anew at each read)
 *   mountinfo_parse  split every line in its fields, undo the octal escapes of root and mount point
 *   listmount        list all mount ids with listmount(2)
 *   statmount        and ask statmount(2) for what mountinfo has: ids, device, root, point, type, source
 *   walk             readdir pods/x/volumes/x and volumeDevices, one statx (with mount id) for each volume
 *   vol_data         open, read and close every CSI volume's vol_data.json
 *
 * Each is the least of 7 rounds, in milliseconds. With "once", each of the reads is done once and nothing is timed: whoever
 * starts it takes the time of the whole process (listmount and statmount, which say the same as mountinfo, are left out).
 * Build: cc -O2 -o probe probe.c
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int rounds = 7;

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
static void die(const char *what) { perror(what); exit(1); }
static void least(double *best, double v) { if (*best == 0 || v < *best) *best = v; }

/* ---- mountinfo ---- */
static char *text;
static size_t text_len, text_cap = 64 << 20;
static long reads;

static void mountinfo_read(void) {
	int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	if (fd < 0) die("mountinfo");
	text_len = reads = 0;
	for (ssize_t n; (n = read(fd, text + text_len, text_cap - text_len)) != 0; reads++) {
		if (n < 0) die("read mountinfo");
		text_len += n;
	}
	close(fd);
}

struct entry { unsigned id, parent, major, minor; char *root, *point, *type, *source; };
static struct entry *entries;
static size_t entry_count;

static char *field(char **at) { /* cuts the next space-separated field off */
	char *s = *at, *e = s + strcspn(s, " \n");
	*at = *e ? e + 1 : e;
	*e = 0;
	return s;
}
static void unescape(char *s) {
	if (!(s = strchr(s, '\\'))) return;
	char *d = s;
	while (*s)
		if (*s == '\\') { *d++ = (s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'); s += 4; }
		else *d++ = *s++;
	*d = 0;
}
static void mountinfo_parse(void) {
	text[text_len] = 0;
	entry_count = 0;
	for (char *at = text; *at;) {
		struct entry *e = &entries[entry_count++];
		e->id = strtoul(field(&at), 0, 10);
		e->parent = strtoul(field(&at), 0, 10);
		char *minor;
		e->major = strtoul(field(&at), &minor, 10);
		e->minor = strtoul(minor + 1, 0, 10);
		unescape(e->root = field(&at));
		unescape(e->point = field(&at));
		while (strcmp(field(&at), "-")) /* mount options and the optional fields */
			;
		e->type = field(&at);
		e->source = field(&at);
		field(&at); /* options of the super block */
	}
}

/* ---- listmount and statmount, by number: this C library may not know them ---- */
#define NR_STATMOUNT 457
#define NR_LISTMOUNT 458
struct mnt_req { uint32_t size, spare; uint64_t mnt_id, param, mnt_ns_id; };
static uint64_t *ids;
static size_t id_cap = 1 << 18;

static long listmount_all(void) {
	struct mnt_req q = { .size = sizeof q, .mnt_id = UINT64_MAX /* LSMT_ROOT */ };
	long total = 0, n;
	while ((n = syscall(NR_LISTMOUNT, &q, ids + total, id_cap - total, 0)) > 0) {
		total += n;
		q.param = ids[total - 1];
	}
	return n < 0 ? -1 : total;
}
static long statmount_all(long n) {
	static char buf[8192];
	for (long i = 0; i < n; i++) {
		/* SB_BASIC | MNT_BASIC | MNT_ROOT | MNT_POINT | FS_TYPE | SB_SOURCE */
		struct mnt_req q = { .size = sizeof q, .mnt_id = ids[i], .param = 1 | 2 | 8 | 16 | 32 | 0x200 };
		if (syscall(NR_STATMOUNT, &q, buf, sizeof buf, 0)) return -1;
	}
	return n;
}

/* ---- the tree ---- */
static long dirs, volumes, csi;
static char *data_paths[1 << 17];

static void each(int at, const char *name, void (*f)(int, const char *)) {
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0) return;
	dirs++;
	DIR *d = fdopendir(fd);
	for (struct dirent *e; (e = readdir(d));)
		if (e->d_name[0] != '.') f(fd, e->d_name);
	closedir(d);
}
static void volume(int at, const char *name) {
	struct statx st;
	statx(at, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_BASIC_STATS | 0x4000 /* MNT_ID_UNIQUE */, &st);
	volumes++;
}
static void plugin(int at, const char *name) { each(at, name, volume); }
static void pod(int at, const char *name) {
	char path[300];
	snprintf(path, sizeof path, "%s/volumes", name);
	each(at, path, plugin);
	snprintf(path, sizeof path, "%s/volumeDevices", name);
	each(at, path, plugin);
}
static void vol_data(void) {
	char buf[4096];
	for (long i = 0; i < csi; i++) {
		int fd = open(data_paths[i], O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && read(fd, buf, sizeof buf) >= 0) close(fd);
	}
}

static int removed(const char *p, const struct stat *s, int f, struct FTW *w) { (void)s, (void)f, (void)w; return remove(p); }

int main(int argc, char **argv) {
	if (argc < 2) return 2;
	text = malloc(text_cap + 1);
	entries = malloc(sizeof *entries * (1 << 18));
	ids = malloc(sizeof *ids * id_cap);
	char pods[4096];
	snprintf(pods, sizeof pods, "%s/pods", argv[1]);

	int once = argc > 2 && !strcmp(argv[2], "once");
	if (once)
		rounds = 1;
	else if (argc > 2) { /* one pass: every mount below ROOT, the latest first, then the folders */
		struct rusage ru;
		double t = now();
		mountinfo_read();
		mountinfo_parse();
		size_t n = strlen(argv[1]), gone = 0;
		for (size_t i = entry_count; i-- > 0;)
			if (!strncmp(entries[i].point, argv[1], n)) {
				if (umount2(entries[i].point, UMOUNT_NOFOLLOW)) die(entries[i].point);
				gone++;
			}
		double u = now();
		nftw(pods, removed, 64, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
		double e = now();
		getrusage(RUSAGE_SELF, &ru);
		printf("{\"phase\":\"floor_cleanup\",\"unmounted\":%zu,\"umount_ms\":%.3f,\"remove_ms\":%.3f,\"wall_ms\":%.3f,\"peak_rss_kib\":%ld}\n",
		       gone, u - t, e - u, e - t, ru.ru_maxrss);
		return 0;
	}

	double rd = 0, parse = 0, list = 0, stat = 0, walk = 0, data = 0;
	long n = 0, m = 0;
	for (int i = 0; i < rounds; i++) {
		double t = now();
		mountinfo_read();
		least(&rd, now() - t);
		t = now();
		mountinfo_parse();
		least(&parse, now() - t);
		if (!once) {
			t = now();
			n = listmount_all();
			least(&list, now() - t);
			t = now();
			m = statmount_all(n);
			least(&stat, now() - t);
		}
		dirs = volumes = 0;
		t = now();
		each(AT_FDCWD, pods, pod);
		least(&walk, now() - t);
	}
	/* the pods' CSI folders, from the mount table: .../kubernetes.io~csi/<name>/mount */
	for (size_t i = 0; i < entry_count; i++) {
		char *p = strstr(entries[i].point, "/volumes/kubernetes.io~csi/"), *e = strrchr(entries[i].point, '/');
		if (p && e) {
			*e = 0;
			if (asprintf(&data_paths[csi++], "%s/vol_data.json", entries[i].point) < 0) die("memory");
		}
	}
	for (int i = 0; i < rounds; i++) {
		double t = now();
		vol_data();
		least(&data, now() - t);
	}
	struct rusage ru;
	getrusage(RUSAGE_SELF, &ru);
	printf("{\"phase\":\"floor\",\"mount_table\":%zu,\"mountinfo_bytes\":%zu,\"mountinfo_reads\":%ld,\"mountinfo_read_ms\":%.3f,"
	       "\"mountinfo_parse_ms\":%.3f,\"listmount_ms\":%.3f,\"listmount_n\":%ld,\"statmount_ms\":%.3f,\"statmount_n\":%ld,"
	       "\"walk_ms\":%.3f,\"walk_dirs\":%ld,\"walk_volumes\":%ld,\"vol_data_ms\":%.3f,\"vol_data_files\":%ld,\"peak_rss_kib\":%ld}\n",
	       entry_count, text_len, reads, rd, parse, list, n, stat, m, walk, dirs, volumes, data, csi, ru.ru_maxrss);
	return 0;
}
