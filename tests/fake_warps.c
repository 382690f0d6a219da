/* A warp of 32 threads as so many stacks: each runs until all must meet, then the next one does. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

enum { LANES = 32, STACK = 1 << 17 };
typedef void (*Kernel)(void **);
enum { RUNNING, WAITING, DONE };

static ucontext_t host, lanes[LANES];
static char *stacks;
static int current, state[LANES];
static void *where[LANES];
static uint32_t slots[LANES], block, threads, first;
static Kernel kernel;
static void **parameters;

uint32_t pb_tid(void) { return first + current; }
uint32_t pb_ctaid(void) { return block; }
uint32_t pb_ntid(void) { return threads; }

static void wait_at(void *place) {
  where[current] = place;
  state[current] = WAITING;
  swapcontext(&lanes[current], &host);
}
void pb_meet(uint32_t mask) { wait_at(__builtin_return_address(0)); }

static uint32_t shuffled(uint32_t value, uint32_t from, void *place) {
  slots[current] = value;
  wait_at(place);
  uint32_t got = slots[from % LANES];
  wait_at((char *)place + 1);
  return got;
}
uint32_t pb_idx_i32(uint32_t mask, uint32_t value, uint32_t which, uint32_t most) {
  return shuffled(value, which, __builtin_return_address(0));
}
uint32_t pb_bfly_i32(uint32_t mask, uint32_t value, uint32_t which, uint32_t most) {
  return shuffled(value, current ^ which, __builtin_return_address(0));
}
typedef union { float f; uint32_t u; } Bits;
float pb_idx_f32(uint32_t mask, float value, uint32_t which, uint32_t most) {
  Bits bits = {.f = value};
  bits.u = shuffled(bits.u, which, __builtin_return_address(0));
  return bits.f;
}
float pb_bfly_f32(uint32_t mask, float value, uint32_t which, uint32_t most) {
  Bits bits = {.f = value};
  bits.u = shuffled(bits.u, current ^ which, __builtin_return_address(0));
  return bits.f;
}

static void thread(void) {
  kernel(parameters);
  state[current] = DONE;
  swapcontext(&lanes[current], &host);
}

/* One warp, its threads in order or the other way round in every turn. 1: they met apart. */
static int warp(int backwards) {
  for (int n = 0; n < LANES; n++) {
    getcontext(&lanes[n]);
    lanes[n].uc_stack.ss_sp = stacks + (size_t)n * STACK;
    lanes[n].uc_stack.ss_size = STACK;
    lanes[n].uc_link = &host;
    makecontext(&lanes[n], thread, 0);
    state[n] = RUNNING;
  }
  for (;;) {
    int done = 0;
    for (int n = 0; n < LANES; n++) {
      current = backwards ? LANES - 1 - n : n;
      state[current] = RUNNING;
      swapcontext(&host, &lanes[current]);
    }
    for (int n = 0; n < LANES; n++) {
      done += state[n] == DONE;
      if (state[n] != state[0] || (state[n] == WAITING && where[n] != where[0])) return 1;
    }
    if (done == LANES) return 0;
    backwards = !backwards;
  }
}

int pb_launch(Kernel which, void **given, uint32_t blocks, uint32_t each, int backwards) {
  if (!stacks) stacks = malloc((size_t)LANES * STACK);
  kernel = which, parameters = given, threads = each;
  for (block = 0; block < blocks; block++)
    for (first = 0; first < each; first += LANES)
      if (warp(backwards)) return 1;
  return 0;
}
