#include <pthread.h>
#include <stdlib.h>

typedef void pb_body(void **block, int64_t task, char *scratch);

/* Threads of this library's own: started when they are first needed, asleep between launches. A
   call that meets another one's launch runs its tasks itself. */
static struct {
  pb_body *body;
  void **block;
  char *scratch;
  int64_t tasks, stride, next, turn;
  int threads, busy, started;
} pb_job;
static pthread_mutex_t pb_lock = PTHREAD_MUTEX_INITIALIZER, pb_owner = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pb_more = PTHREAD_COND_INITIALIZER, pb_done = PTHREAD_COND_INITIALIZER;

static int pb_threads(void) {
  const char *asked = getenv("PULLBACK_THREADS");
  const int most = asked ? atoi(asked) : PB_POOL;
  return most < 1 ? 1 : most < PB_POOL ? most : PB_POOL;
}
#define PB_THREADS pb_threads()

static void pb_work(int64_t thread) {
  for (;;) {
    const int64_t task = __atomic_fetch_add(&pb_job.next, 1, __ATOMIC_RELAXED);
    if (task >= pb_job.tasks) return;
    pb_job.body(pb_job.block, task, pb_job.stride ? pb_job.scratch + pb_job.stride * thread : 0);
  }
}

static void *pb_worker(void *given) {
  pthread_mutex_lock(&pb_lock);
  for (int64_t seen = 0;;) {
    while (pb_job.turn == seen) pthread_cond_wait(&pb_more, &pb_lock);
    seen = pb_job.turn;
    pthread_mutex_unlock(&pb_lock);
    if ((intptr_t)given < pb_job.threads) pb_work((intptr_t)given);
    pthread_mutex_lock(&pb_lock);
    if (!--pb_job.busy) pthread_cond_signal(&pb_done);
  }
  return 0;
}

/* A forked child has none of them. */
static void pb_forked(void) {
  pthread_mutex_init(&pb_lock, 0), pthread_mutex_init(&pb_owner, 0);
  pthread_cond_init(&pb_more, 0), pthread_cond_init(&pb_done, 0);
  pb_job.started = pb_job.busy = 0, pb_job.turn = 0;
}

static void pb_start(int threads) {
  static int told;
  if (!told) told = 1, pthread_atfork(0, 0, pb_forked);
  while (pb_job.started < threads - 1) {
    pthread_t made;
    if (pthread_create(&made, 0, pb_worker, (void *)(intptr_t)(pb_job.started + 1))) return;
    pthread_detach(made);
    ++pb_job.started;
  }
}

/* All tasks of a kernel; each thread has scratch of its own. */
static void pb_launch(
    pb_body *body, void **block, int64_t tasks, char *scratch, int64_t stride, int threads) {
  if (tasks < 2 || threads < 2 || pthread_mutex_trylock(&pb_owner)) {
    for (int64_t task = 0; task < tasks; ++task) body(block, task, scratch);
    return;
  }
  pthread_mutex_lock(&pb_lock);
  if (!pb_job.turn) pb_start(PB_POOL);
  pb_job.body = body, pb_job.block = block, pb_job.scratch = scratch;
  pb_job.threads = threads, pb_job.tasks = tasks, pb_job.stride = stride, pb_job.next = 0;
  pb_job.busy = pb_job.started, ++pb_job.turn;
  pthread_cond_broadcast(&pb_more);
  pthread_mutex_unlock(&pb_lock);
  pb_work(0);
  pthread_mutex_lock(&pb_lock);
  while (pb_job.busy) pthread_cond_wait(&pb_done, &pb_lock);
  pthread_mutex_unlock(&pb_lock);
  pthread_mutex_unlock(&pb_owner);
}
