// The CUDA kernels of models/src/fused/kernels.cu run on a processor, against their definitions in double precision: a
// block's threads are threads, blocks come one after the other. Called by .ci/cuda; needs no GPU and no toolkit.
//
//     g++ -std=c++20 -O1 -ffp-contract=off -pthread models/tests/fused.cpp -o /tmp/fused && /tmp/fused

#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

struct Place {
  unsigned x = 1, y = 1, z = 1;
};
static thread_local Place threadIdx, blockIdx;
static Place blockDim, gridDim;
static std::barrier<> *block;

#define __global__
#define __device__
#define __shared__ static
#define __syncthreads() block->arrive_and_wait()
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fdiv_rn(float a, float b) { return a / b; }
static float __fsqrt_rn(float a) { return std::sqrt(a); }
#include "../src/fused/kernels.cu"

using Floats = std::vector<float>;

static void launch(Place grid, Place threads, const std::function<void()> &kernel) {
  gridDim = grid, blockDim = threads;
  for (unsigned y = 0; y < grid.y; y++)
    for (unsigned x = 0; x < grid.x; x++) {
      std::barrier<> here(threads.x * threads.y);
      block = &here;
      std::vector<std::thread> all;
      for (unsigned i = 0; i < threads.x * threads.y; i++)
        all.emplace_back([=, &kernel] {
          blockIdx = {x, y, 0}, threadIdx = {i % threads.x, i / threads.x, 0};
          kernel();
        });
      for (auto &thread : all) thread.join();
    }
}

// A grid of fewer threads than elements, as of large arrays.
static void elementwise(const std::function<void()> &kernel) { launch({3, 1, 1}, {7, 1, 1}, kernel); }

// The same of rows: threads beside each other take its elements, the others other rows.
static void by_row(const std::function<void()> &kernel) { launch({3, 1, 1}, {2, 4, 1}, kernel); }

static Floats values(size_t count, unsigned seed) {
  Floats all(count);
  for (auto &value : all) {
    seed = seed * 1664525 + 1013904223;
    value = (int)(seed >> 8) / 8388608.f - 1.f;
  }
  return all;
}

static int failed = 0;

static void near(const char *what, double found, double right, double tolerance) {
  if (std::abs(found - right) <= tolerance * std::max(1., std::abs(right))) return;
  if (failed++ < 10) std::printf("%s: %.9g where %.9g is right\n", what, found, right);
}

static void convolutions(u32 height, u32 width, u32 rows, u32 columns, u32 stride, u32 padding) {
  const u32 batch = 2, channels = 3, filters = 4;
  u32 tall = (height + 2 * padding - rows) / stride + 1, wide = (width + 2 * padding - columns) / stride + 1;
  Floats xs = values(batch * height * width * channels, 1), weight = values(rows * columns * channels * filters, 2);
  u64 taps = rows * columns * channels, count = batch * tall * wide * taps;
  Floats laid(count, NAN), back(xs.size(), NAN), gradient = values(count, 3);
  // Fewer threads than a row has elements, and than there are rows.
  by_row([&] {
    windows(batch * tall * wide, xs.data(), laid.data(), height, width, channels, tall, wide, rows, columns, stride, padding);
  });
  by_row([&] {
    fold(batch * height * width, gradient.data(), back.data(), height, width, channels, tall, wide, rows, columns, stride,
         padding);
  });
  // The product of rows with weights is the convolution.
  for (u32 image = 0; image < batch; image++)
    for (u32 top = 0; top < tall; top++)
      for (u32 left = 0; left < wide; left++)
        for (u32 filter = 0; filter < filters; filter++) {
          double right = 0., found = 0.;
          u64 window = (image * tall + top) * wide + left;
          for (u64 tap = 0; tap < taps; tap++) found += (double)laid[window * taps + tap] * weight[tap * filters + filter];
          for (u32 row = 0; row < rows; row++)
            for (u32 column = 0; column < columns; column++) {
              int y = int(top * stride + row) - int(padding), x = int(left * stride + column) - int(padding);
              if (y < 0 || y >= int(height) || x < 0 || x >= int(width)) continue;
              for (u32 c = 0; c < channels; c++)
                right += (double)xs[((image * height + y) * width + x) * channels + c] *
                         weight[((row * columns + column) * channels + c) * filters + filter];
            }
          near("convolution", found, right, 1e-12);
        }
  // The gradient of a linear map is its transpose: <laid, gradient> = <xs, back>.
  double forward = 0., backward = 0.;
  for (u64 i = 0; i < count; i++) forward += (double)laid[i] * gradient[i];
  for (u64 i = 0; i < xs.size(); i++) backward += (double)xs[i] * back[i];
  near("fold", backward, forward, 1e-5);
}

static void tables() {
  const u32 rows = 6, width = 5, picks = 8;
  const u32 numbers[picks] = {4, 0, 2, 4, 4, 0, 5, 1};
  Floats table = values(rows * width, 9), picked(picks * width, NAN), gs = values(picks * width, 10);
  launch({picks, 1, 1}, {3, 1, 1}, [&] { pick_rows(width, numbers, table.data(), picked.data()); });
  for (u32 i = 0; i < picks * width; i++) near("pick_rows", picked[i], table[numbers[i / width] * width + i % width], 0.);
  // The picks of row 5 give nothing, nor does the second of row 4.
  const u32 taken[] = {0, 1, 2, 4}, starts[] = {0, 2, 3, 4, 6}, places[] = {1, 5, 7, 2, 0, 4};
  Floats back(rows * width, 0.f);
  launch({4, 1, 1}, {3, 1, 1}, [&] { sum_rows(width, taken, starts, places, gs.data(), back.data()); });
  for (u32 row = 0; row < rows; row++)
    for (u32 column = 0; column < width; column++) {
      double right = 0.;
      for (u32 pick : places)
        if (numbers[pick] == row) right += gs[pick * width + column];
      near("sum_rows", back[row * width + column], right, 1e-6);
    }
}

// Shares of the rows, a block of 32 channels by 8 rows each, and a warp for each of 8 channels that puts them together.
static Floats by_shares(u32 channels, u32 shares, u32 rows_of_result, const std::function<void(float *)> &share,
                        const std::function<void(const float *, float *)> &put_together) {
  Floats partial(2 * shares * channels, NAN), to(rows_of_result * channels, NAN);
  launch({(channels + 31) / 32, shares, 1}, {32, 8, 1}, [&] { share(partial.data()); });
  launch({(channels + 7) / 8, 1, 1}, {32, 8, 1}, [&] { put_together(partial.data(), to.data()); });
  return to;
}

static Floats table_of(u64 rows, u32 channels, u32 shares, const Floats &xs, const Floats &gamma, const Floats &beta) {
  return by_shares(
      channels, shares, 5, [&](float *partial) { column_moments(rows, channels, xs.data(), partial); },
      [&](const float *partial, float *to) {
        batch_table(rows, channels, shares, 1e-5, partial, gamma.data(), beta.data(), to);
      });
}

// The moments of columns far from zero, with one element far from the others, and of constant ones.
static void moments(u64 rows, u32 shares) {
  const u32 channels = 3;
  Floats xs = values(rows * channels, 11), ones(channels, 1.f);
  for (u64 row = 0; row < rows; row++) {
    xs[row * channels] += 1000.f;
    if (row == 0) xs[1] = 300.f;
    xs[row * channels + 2] = 0.1f;
  }
  Floats table = table_of(rows, channels, shares, xs, ones, ones);
  for (u32 channel = 0; channel < channels; channel++) {
    double mean = 0., squares = 0.;
    for (u64 row = 0; row < rows; row++) mean += (double)xs[row * channels + channel] / rows;
    for (u64 row = 0; row < rows; row++) squares += std::pow(xs[row * channels + channel] - mean, 2);
    near("mean", table[2 * channels + channel], mean, 1e-6);
    near("1 / deviation", table[3 * channels + channel] * std::sqrt(squares / rows + 1e-5), 1., 1e-5);
    near("unbiased variance", table[4 * channels + channel], squares / (rows - 1), 1e-5);
  }
}

// Running statistics after some passes are the averages that their momentum says.
static void running(double momentum) {
  const u32 channels = 30; // more than the threads of `elementwise`
  Floats statistics(channels, 1e30f);
  float passes = 0.25f;
  std::vector<double> sums(channels, 0.);
  double weights = 0.;
  for (u32 pass = 1; pass < 40; pass++) {
    Floats batch = values(channels, 20 + pass);
    launch({1, 1, 1}, {1, 1, 1}, [&] { count_pass(16777216.f, &passes); });
    elementwise([&] { track(channels, momentum, batch.data(), &passes, statistics.data()); });
    weights = weights * (1. - momentum) + 1.;
    near("passes", passes, pass, 0.);
    for (u32 channel = 0; channel < channels; channel++) {
      sums[channel] = sums[channel] * (1. - momentum) + batch[channel];
      near("running statistic", statistics[channel], sums[channel] / weights, 1e-6);
    }
  }
  for (auto [before, after] : {std::pair{2.75f, 4.f}, {-3.f, 1.f}, {8388609.f, 8388610.f}, {1e12f, 16777216.f}}) {
    launch({1, 1, 1}, {1, 1, 1}, [&, before = before] { passes = before, count_pass(16777216.f, &passes); });
    near("passes", passes, after, 0.);
  }
}

// A batch norm with its residual: values against the definition, gradients against differences of it.
static void batch_norm(u64 rows, u32 channels, u32 shares, bool relu, bool train) {
  u64 n = rows * channels;
  Floats xs = values(n, 4), residual = values(n, 5), gs = values(n, 6);
  Floats gamma = values(channels, 7), beta = values(channels, 8);
  for (auto &x : xs) x += 3.f;
  Floats table = table_of(rows, channels, shares, xs, gamma, beta);
  Floats ys(n, NAN), gated(n, NAN), back(n, NAN);
  elementwise([&] { normalise(n, channels, relu, xs.data(), table.data(), residual.data(), ys.data()); });
  if (relu)
    elementwise([&] { gate(n, ys.data(), gs.data(), gated.data()); });
  else
    gated = gs;
  table = by_shares(
      channels, shares, 10,
      [&](float *partial) { gradient_sums(rows, channels, xs.data(), gated.data(), table.data(), partial); },
      [&](const float *partial, float *to) { with_gradient(channels, shares, partial, table.data(), to); });
  const float *products = table.data() + 5 * channels, *totals = products + channels;
  for (u32 i = 7 * channels; i < 10 * channels; i++) near("gradient of what follows", table[i], 0., 0.);
  elementwise([&] { input_gradient(n, channels, train ? 1.f / rows : 0.f, xs.data(), gated.data(), table.data(), back.data()); });

  for (u32 channel = 0; channel < channels; channel++) {
    // The channel's loss, sum of gs * result, where the element of `at` is moved, and so are gamma and beta.
    auto of = [&](u64 at, double move, double scale, double shift, Floats *result) {
      auto x = [&](u64 row) { return xs[row * channels + channel] + (row == at ? move : 0.); };
      double m = 0., v = 0., loss = 0.;
      for (u64 row = 0; row < rows; row++) m += train ? x(row) : (double)xs[row * channels + channel];
      m /= rows;
      for (u64 row = 0; row < rows; row++) v += std::pow((train ? x(row) : (double)xs[row * channels + channel]) - m, 2);
      v /= rows;
      for (u64 row = 0; row < rows; row++) {
        u64 i = row * channels + channel;
        double y = (x(row) - m) / std::sqrt(v + 1e-5) * (gamma[channel] + scale) + beta[channel] + shift + residual[i];
        if (relu && y <= 0.) y = 0.;
        loss += y * gs[i];
        if (result) (*result)[i] = y;
      }
      return loss;
    };
    Floats right(n);
    of(0, 0., 0., 0., &right);
    for (u64 row = 0; row < rows; row++) near("normalise", ys[row * channels + channel], right[row * channels + channel], 1e-5);
    const double step = 1e-6;
    for (u64 row = 0; row < rows; row += 11)
      near("input gradient", back[row * channels + channel],
           (of(row, step, 0., 0., nullptr) - of(row, -step, 0., 0., nullptr)) / (2. * step), 2e-4);
    near("gamma", products[channel], (of(0, 0., step, 0., nullptr) - of(0, 0., -step, 0., nullptr)) / (2. * step), 2e-4);
    near("beta", totals[channel], (of(0, 0., 0., step, nullptr) - of(0, 0., 0., -step, nullptr)) / (2. * step), 2e-4);
  }
}

// Steps of an optimizer by `with` on some weights, and the same by a definition of one weight in double precision.
static void steps_of(const char *what, u32 vectors, const std::function<void(u32, const Floats &, std::vector<Floats> &)> &with,
                     const std::function<void(u32, double, std::vector<double> &)> &of_one) {
  const u32 n = 50; // more than the threads of `elementwise`
  std::vector<Floats> found(1 + vectors, Floats(n, 0.f));
  found[0] = values(n, 30);
  std::vector<std::vector<double>> right(n, std::vector<double>(1 + vectors, 0.));
  for (u32 i = 0; i < n; i++) right[i][0] = found[0][i];
  for (u32 step = 1; step < 7; step++) {
    Floats gs = values(n, 30 + step);
    with(step, gs, found);
    for (u32 i = 0; i < n; i++) of_one(step, gs[i], right[i]);
  }
  for (u32 i = 0; i < n; i++)
    for (u32 vector = 0; vector <= vectors; vector++) near(what, found[vector][i], right[i][vector], 2e-6);
}

static void optimizers() {
  const double rate = 0.1, decay = 0.02, factor = 0.9;
  steps_of(
      "sgd", 0,
      [&](u32, const Floats &gs, auto &all) {
        elementwise([&] { sgd(gs.size(), rate, decay, 0, 0, 0, gs.data(), nullptr, all[0].data()); });
      },
      [&](u32, double g, auto &w) { w[0] -= rate * (g + decay * w[0]); });
  for (bool nesterov : {false, true})
    steps_of(
        "sgd with momentum", 1,
        [&](u32 step, const Floats &gs, auto &all) {
          if (step == 1) all[1].assign(gs.size(), NAN); // what was there has no part in the first step
          elementwise([&] {
            sgd(gs.size(), rate, decay, factor, step == 1, nesterov, gs.data(), all[1].data(), all[0].data());
          });
        },
        [&](u32, double g, auto &w) {
          g += decay * w[0];
          w[1] = factor * w[1] + g;
          w[0] -= rate * (nesterov ? g + factor * w[1] : w[1]);
        });
  const double b1 = 0.9, b2 = 0.99, epsilon = 1e-3;
  steps_of(
      "adamw", 2,
      [&](u32 step, const Floats &gs, auto &all) {
        double size = rate / (1. - std::pow(b1, step)), root = std::sqrt(1. - std::pow(b2, step));
        elementwise([&] {
          adamw(gs.size(), 1. - rate * decay, size, root, epsilon, 1. - b1, b2, 1. - b2, gs.data(), all[1].data(),
                all[2].data(), all[0].data());
        });
      },
      [&](u32 step, double g, auto &w) {
        w[1] = b1 * w[1] + (1. - b1) * g, w[2] = b2 * w[2] + (1. - b2) * g * g;
        double one = w[1] / (1. - std::pow(b1, step)), two = w[2] / (1. - std::pow(b2, step));
        w[0] -= rate * decay * w[0] + rate * one / (std::sqrt(two) + epsilon);
      });
}

static void averages() {
  const u32 n = 50;
  const Floats some = values(n, 40), others = values(n, 41);
  for (u32 back : {0, 1}) {
    Floats found = some, of = others;
    elementwise([&] { average(n, 0.3f, back, found.data(), of.data()); });
    for (u32 i = 0; i < n; i++) {
      near("average", found[i], 0.7 * some[i] + 0.3 * others[i], 1e-6);
      near("what it is the average of", of[i], back ? found[i] : others[i], 0.);
    }
    elementwise([&] { swap(n, found.data(), of.data()); });
    for (u32 i = 0; i < n; i++) near("swap", of[i], 0.7 * some[i] + 0.3 * others[i], 1e-6);
    for (u32 i = 0; i < n; i++) near("swap", found[i], back ? of[i] : others[i], 0.);
  }
  for (u32 count : {0, 5, 1000}) {
    Floats xs = values(count, 42);
    double right = 0., sums[2] = {NAN, NAN};
    for (float x : xs) right += (double)x * x;
    launch({2, 1, 1}, {256, 1, 1}, [&] { squares(count, xs.data(), sums); });
    near("squares", sums[0] + sums[1], right, 1e-12);
  }
}

int main() {
  optimizers();
  averages();
  convolutions(6, 5, 3, 3, 1, 1);
  convolutions(7, 6, 3, 3, 2, 1);
  convolutions(6, 6, 1, 1, 2, 0);
  convolutions(5, 9, 2, 5, 3, 2);
  convolutions(7, 8, 2, 2, 3, 0);
  tables();
  for (bool relu : {false, true})
    for (bool train : {false, true}) {
      batch_norm(37, 5, 2, relu, train);
      batch_norm(64, 40, 3, relu, train);
      batch_norm(90, 5, 41, relu, train); // more shares than a warp has lanes
      batch_norm(6, 5, 4, relu, train);   // a share without rows
    }
  moments(1000, 7), moments(1000, 70), moments(6, 4);
  running(0.1), running(0.001), running(1.);
  // Without a residual, and what is no number.
  Floats xs = {-1.f, 0.f, NAN, 2.f}, table = {1.f, 0.f, 0.f, 1.f}, ys(4), gs = {1.f, 1.f, 1.f, 1.f}, gated(4);
  elementwise([&] { normalise(4, 1, true, xs.data(), table.data(), nullptr, ys.data()); });
  elementwise([&] { gate(4, ys.data(), gs.data(), gated.data()); });
  near("ReLU", ys[0] + ys[1], 0., 0.);
  near("ReLU", ys[3], 2., 0.);
  near("ReLU of NaN", std::isnan(ys[2]), 1., 0.);
  near("gate", gated[0] + gated[1], 0., 0.);
  near("gate", gated[2] + gated[3], 2., 0.);
  std::puts(failed ? "the kernels are WRONG" : "the kernels compute what they say");
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
