// Kernels of GPUs for what candle composes of many operations. Each operation has a twin in plain Rust beside its launches
// (`cpu`), which says the same without threads; `models/tests/fused.cpp` runs these ones on a processor.
//
// Arrays are f32 and row-major; images are [batch, height, width, channels]. Elements are counted in 64 bits: the windows
// of large images are more than 2^32. No sum depends on the order in which blocks run, so equal inputs give equal bits.

typedef unsigned int u32;
typedef unsigned long long u64;

// The elements of a grid-stride loop that this thread takes: the first, and the distance to the next.
__device__ static u64 first() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ static u64 step() { return (u64)gridDim.x * blockDim.x; }

// The windows of a convolution as rows: to[window][row][column][channel], zeros outside of the image. Threads beside each
// other in a block take elements of a window, those below each other windows: a window is found once for all its elements.
extern "C" __global__ void windows(u32 n, const float *xs, float *to, u32 height, u32 width, u32 channels, u32 out_height,
                                   u32 out_width, u32 rows, u32 columns, u32 stride, u32 padding) {
  u32 span = columns * channels, taps = rows * span;
  for (u64 i = (u64)blockIdx.x * blockDim.y + threadIdx.y; i < n; i += (u64)gridDim.x * blockDim.y) {
    u32 window = (u32)i, out_x = window % out_width, line = window / out_width;
    u32 out_y = line % out_height, image = line / out_height;
    long long top = (long long)out_y * stride - padding, left = (long long)out_x * stride - padding;
    // A row of the window is a row of the image from this element on, cut off at the image's ends.
    long long from = left * channels, end = (long long)width * channels;
    for (u32 tap = threadIdx.x; tap < taps; tap += blockDim.x) {
      long long y = top + tap / span, x = from + tap % span;
      bool inside = y >= 0 && y < height && x >= 0 && x < end;
      to[i * taps + tap] = inside ? xs[((u64)image * height + y) * end + x] : 0.f;
    }
  }
}

// The gradient of `windows`: each pixel is the sum of its places in all windows, row by row of their kernel. Threads beside
// each other take channels of a pixel, those below each other pixels, of which there are `n`.
extern "C" __global__ void fold(u32 n, const float *windows, float *to, u32 height, u32 width, u32 channels,
                                u32 out_height, u32 out_width, u32 rows, u32 columns, u32 stride, u32 padding) {
  for (u64 i = (u64)blockIdx.x * blockDim.y + threadIdx.y; i < n; i += (u64)gridDim.x * blockDim.y) {
    u32 pixel = (u32)i, line = pixel / width;
    u32 left = pixel % width + padding, above = line % height + padding, image = line / height;
    for (u32 channel = threadIdx.x; channel < channels; channel += blockDim.x) {
      float sum = 0.f;
      // Row `row` of the kernel is at this pixel in windows of line `out_y`; one line up it is `stride` rows further.
      u32 out_y = above / stride;
      for (u32 row = above % stride; row < rows && row <= above; row += stride, out_y--) {
        if (out_y >= out_height) continue;
        u32 out_x = left / stride;
        for (u32 column = left % stride; column < columns && column <= left; column += stride, out_x--) {
          if (out_x >= out_width) continue;
          u64 window = ((u64)image * out_height + out_y) * out_width + out_x;
          sum += windows[((window * rows + row) * columns + column) * channels + channel];
        }
      }
      to[i * channels + channel] = sum;
    }
  }
}

// The rows of a table with these numbers, a block for each.
extern "C" __global__ void pick_rows(u32 width, const u32 *numbers, const float *table, float *to) {
  const float *row = table + (u64)numbers[blockIdx.x] * width;
  for (u32 column = threadIdx.x; column < width; column += blockDim.x) to[(u64)blockIdx.x * width + column] = row[column];
}

// The gradient of `pick_rows`: for each number, a block, the sum of its picks' gradients in their order. The picks of the
// number at i are picks[starts[i]] to picks[starts[i + 1] - 1]. Other rows of `to` stay.
extern "C" __global__ void sum_rows(u32 width, const u32 *numbers, const u32 *starts, const u32 *picks, const float *gs,
                                    float *to) {
  u32 first = starts[blockIdx.x], end = starts[blockIdx.x + 1];
  float *row = to + (u64)numbers[blockIdx.x] * width;
  for (u32 column = threadIdx.x; column < width; column += blockDim.x) {
    float sum = 0.f;
    for (u32 pick = first; pick < end; pick++) sum += gs[(u64)picks[pick] * width + column];
    row[column] = sum;
  }
}

// What is summed over rows is summed in shares: a block of 32 channels by 8 rows takes a share of the rows, and a second
// kernel, with a warp for each of 8 channels, puts the shares together. A thread sums its rows in f32; threads and shares are
// put together in double precision, and the result of a share is kept as f32.

// The first row of a share; that of the share after it is its end.
__device__ static u64 start(u32 share, u64 rows, u32 shares) {
  u64 row = share * ((rows + shares - 1) / shares);
  return row < rows ? row : rows;
}

// The mean of some elements, and the sum of their squared distances from it.
struct Moments {
  double count, mean, squares;
};

// Those of two sets together (Chan, Golub and LeVeque 1979).
__device__ static Moments together(Moments a, Moments b) {
  double count = a.count + b.count;
  if (count == 0.) return a;
  double apart = b.mean - a.mean, part = b.count / count;
  return {count, a.mean + apart * part, a.squares + b.squares + apart * apart * a.count * part};
}

// For each share and channel the mean, then, `shares` rows further, the squares. A thread sums distances from its first
// element, so that nothing cancels where the mean is far from zero.
extern "C" __global__ void column_moments(u64 rows, u32 channels, const float *xs, float *partial) {
  __shared__ Moments lanes[8][32];
  u32 channel = blockIdx.x * 32 + threadIdx.x, share = blockIdx.y, shares = gridDim.y;
  u64 end = start(share + 1, rows, shares);
  float pivot = 0.f, sum = 0.f, squares = 0.f;
  u32 count = 0;
  if (channel < channels)
    for (u64 row = start(share, rows, shares) + threadIdx.y; row < end; row += 8) {
      float x = xs[row * channels + channel];
      if (count++ == 0) pivot = x;
      sum += x - pivot;
      squares += (x - pivot) * (x - pivot);
    }
  double mean = count ? (double)sum / count : 0., about_mean = squares - mean * sum;
  // Where the first element is far from millions of others, rounding can leave less than nothing.
  lanes[threadIdx.y][threadIdx.x] = {(double)count, pivot + mean, about_mean < 0. ? 0. : about_mean};
  __syncthreads();
  if (threadIdx.y == 0 && channel < channels) {
    Moments all = lanes[0][threadIdx.x];
    for (u32 y = 1; y < 8; y++) all = together(all, lanes[y][threadIdx.x]);
    u64 place = (u64)share * channels + channel;
    partial[place] = (float)all.mean;
    partial[place + (u64)shares * channels] = (float)all.squares;
  }
}

// The table of a batch, five rows of channels: gamma, beta, mean, 1 / deviation, unbiased variance.
extern "C" __global__ void batch_table(u64 rows, u32 channels, u32 shares, double epsilon, const float *partial,
                                       const float *gamma, const float *beta, float *table) {
  __shared__ Moments lanes[8][32];
  u32 channel = blockIdx.x * 8 + threadIdx.y, lane = threadIdx.x;
  Moments all = {0., 0., 0.};
  if (channel < channels)
    for (u32 share = lane; share < shares; share += 32) {
      double count = (double)(start(share + 1, rows, shares) - start(share, rows, shares));
      u64 place = (u64)share * channels + channel;
      all = together(all, {count, partial[place], partial[place + (u64)shares * channels]});
    }
  lanes[threadIdx.y][lane] = all;
  __syncthreads();
  for (u32 half = 16; half > 0; half /= 2) {
    if (lane < half) lanes[threadIdx.y][lane] = together(lanes[threadIdx.y][lane], lanes[threadIdx.y][lane + half]);
    __syncthreads();
  }
  if (lane == 0 && channel < channels) {
    all = lanes[threadIdx.y][0];
    float *column = table + channel;
    column[0] = gamma[channel];
    column[channels] = beta[channel];
    column[2 * channels] = (float)all.mean;
    column[3 * channels] = (float)(1. / sqrt(all.squares / all.count + epsilon));
    column[4 * channels] = (float)(all.squares / (all.count - 1.));
  }
}

// One more training pass. The number is rounded first: a mean over ranks may have left a fraction.
extern "C" __global__ void count_pass(float settled, float *passes) {
  float before = roundf(*passes);
  *passes = (before > 0.f ? before < settled ? before : settled - 1.f : 0.f) + 1.f;
}

// Moves running statistics towards the batch's, which weighs momentum / (1 - (1 - momentum)^passes).
extern "C" __global__ void track(u32 channels, double momentum, const float *batch, const float *passes, float *running) {
  // With a small momentum nearly everything cancels, but not in expm1. The first pass leaves nothing of what was there, not
  // even its rounding.
  double weight = *passes > 1.f ? momentum / -expm1(*passes * log1p(-momentum)) : 1.;
  for (u64 channel = first(); channel < channels; channel += step())
    running[channel] = running[channel] * (float)(1. - weight) + batch[channel] * (float)weight;
}

// For each share and channel the sum of gradients times normalised values, then, `shares` rows further, that of the
// gradients.
extern "C" __global__ void gradient_sums(u64 rows, u32 channels, const float *xs, const float *gs, const float *table,
                                         float *partial) {
  __shared__ float products[8][32], gradients[8][32];
  u32 channel = blockIdx.x * 32 + threadIdx.x, share = blockIdx.y, shares = gridDim.y;
  float of_products = 0.f, of_gradients = 0.f;
  if (channel < channels) {
    float mean = table[2 * channels + channel], scale = table[3 * channels + channel];
    u64 end = start(share + 1, rows, shares);
    for (u64 row = start(share, rows, shares) + threadIdx.y; row < end; row += 8) {
      u64 i = row * channels + channel;
      of_products += gs[i] * ((xs[i] - mean) * scale);
      of_gradients += gs[i];
    }
  }
  products[threadIdx.y][threadIdx.x] = of_products, gradients[threadIdx.y][threadIdx.x] = of_gradients;
  __syncthreads();
  if (threadIdx.y == 0 && channel < channels) {
    double product = 0., gradient = 0.;
    for (u32 y = 0; y < 8; y++) product += products[y][threadIdx.x], gradient += gradients[y][threadIdx.x];
    u64 place = (u64)share * channels + channel;
    partial[place] = (float)product;
    partial[place + (u64)shares * channels] = (float)gradient;
  }
}

// A table, and below it its gradient: those of gamma and beta, and zeros for what follows from the batch.
extern "C" __global__ void with_gradient(u32 channels, u32 shares, const float *partial, const float *table, float *to) {
  __shared__ double products[8][32], gradients[8][32];
  u32 channel = blockIdx.x * 8 + threadIdx.y, lane = threadIdx.x;
  double product = 0., gradient = 0.;
  if (channel < channels)
    for (u32 share = lane; share < shares; share += 32) {
      u64 place = (u64)share * channels + channel;
      product += partial[place], gradient += partial[place + (u64)shares * channels];
    }
  products[threadIdx.y][lane] = product, gradients[threadIdx.y][lane] = gradient;
  __syncthreads();
  for (u32 half = 16; half > 0; half /= 2) {
    if (lane < half) {
      products[threadIdx.y][lane] += products[threadIdx.y][lane + half];
      gradients[threadIdx.y][lane] += gradients[threadIdx.y][lane + half];
    }
    __syncthreads();
  }
  if (lane < 5 && channel < channels) {
    u32 place = lane * channels + channel;
    double below = lane == 0 ? products[threadIdx.y][0] : lane == 1 ? gradients[threadIdx.y][0] : 0.;
    to[place] = table[place];
    to[place + 5 * channels] = (float)below;
  }
}

// The channel of an element. Most arrays are counted in 32 bits, and a remainder of 64 takes as long as the memory.
__device__ static u32 channel_of(u64 i, u32 channels) { return i >> 32 ? (u32)(i % channels) : (u32)i % channels; }

// (x - mean) * (gamma / deviation) + beta, plus the residual unless that is null, then ReLU if asked for.
extern "C" __global__ void normalise(u64 n, u32 channels, u32 relu, const float *xs, const float *table,
                                     const float *residual, float *to) {
  for (u64 i = first(); i < n; i += step()) {
    const float *column = table + channel_of(i, channels);
    float scale = column[0] * column[3 * channels];
    float y = (xs[i] - column[2 * channels]) * scale + column[channels];
    if (residual) y += residual[i];
    to[i] = relu && y <= 0.f ? 0.f : y; // NaN stays
  }
}

// What ReLU leaves of a gradient, by its result: at 0 nothing.
extern "C" __global__ void gate(u64 n, const float *result, const float *gs, float *to) {
  for (u64 i = first(); i < n; i += step()) to[i] = result[i] <= 0.f ? 0.f : gs[i];
}

// The gradient of what `normalise` took. The table is one `with_gradient`. `share`: 1 / rows if mean and deviation are those
// of `xs`, 0 if they are constants.
extern "C" __global__ void input_gradient(u64 n, u32 channels, float share, const float *xs, const float *gs,
                                          const float *table, float *to) {
  for (u64 i = first(); i < n; i += step()) {
    const float *column = table + channel_of(i, channels);
    float normal = (xs[i] - column[2 * channels]) * column[3 * channels];
    float of_mean = share * column[6 * channels], of_deviation = share * column[5 * channels];
    to[i] = column[0] * column[3 * channels] * (gs[i] - of_mean - normal * of_deviation);
  }
}

// Updates of weights. What is multiplied and added is rounded after each of the two, as on a processor: a compiler for GPUs
// would round `a * b + c` once. So the bits are those of the processor.

__device__ static float plus_product(float sum, float a, float b) { return __fadd_rn(sum, __fmul_rn(a, b)); }

// SGD, with a momentum unless there is none.
extern "C" __global__ void sgd(u64 n, float rate, float decay, float factor, u32 first_update, u32 nesterov, const float *gs,
                               float *momentum, float *weights) {
  for (u64 i = first(); i < n; i += step()) {
    float weight = weights[i], gradient = plus_product(gs[i], decay, weight), move = gradient;
    if (momentum) {
      float next = first_update ? gradient : __fadd_rn(__fmul_rn(factor, momentum[i]), gradient);
      momentum[i] = next;
      move = nesterov ? plus_product(gradient, factor, next) : next;
    }
    weights[i] = plus_product(weight, -rate, move);
  }
}

// AdamW: the moments move by these shares; `root` and `size` correct them for their beginning at zero.
extern "C" __global__ void adamw(u64 n, float keep, float size, float root, float epsilon, float toward, float held,
                                 float fresh, const float *gs, float *first_moments, float *second_moments, float *weights) {
  for (u64 i = first(); i < n; i += step()) {
    float gradient = gs[i];
    float one = plus_product(first_moments[i], toward, __fadd_rn(gradient, -first_moments[i]));
    float two = __fadd_rn(__fmul_rn(held, second_moments[i]), __fmul_rn(__fmul_rn(fresh, gradient), gradient));
    first_moments[i] = one, second_moments[i] = two;
    float direction = __fdiv_rn(one, __fadd_rn(__fdiv_rn(__fsqrt_rn(two), root), epsilon));
    weights[i] = plus_product(__fmul_rn(keep, weights[i]), -size, direction);
  }
}

// Averages that move towards others by a share of the distance; with `back` the others become the averages.
extern "C" __global__ void average(u64 n, float share, u32 back, float *averages, float *others) {
  for (u64 i = first(); i < n; i += step()) {
    float other = others[i], next = plus_product(averages[i], share, __fadd_rn(other, -averages[i]));
    averages[i] = next;
    if (back) others[i] = next;
  }
}

extern "C" __global__ void swap(u64 n, float *some, float *others) {
  for (u64 i = first(); i < n; i += step()) {
    float one = some[i];
    some[i] = others[i], others[i] = one;
  }
}

// The sum of squares of the elements that each block takes. Blocks have 256 threads.
extern "C" __global__ void squares(u64 n, const float *xs, double *sums) {
  __shared__ double lanes[256];
  double sum = 0.;
  for (u64 i = first(); i < n; i += step()) sum += (double)xs[i] * xs[i];
  lanes[threadIdx.x] = sum;
  __syncthreads();
  for (u32 half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = lanes[0];
}
