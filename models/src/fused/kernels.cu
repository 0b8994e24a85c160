// Kernels of GPUs for what candle composes of many operations. Each has a twin in plain Rust beside the operation that
// launches it (`cpu`), which says the same without threads; `models/tests/fused.cpp` runs these ones on a processor.
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

// Sums over rows run in two steps: a block of 32 channels by 8 rows sums its share of the rows for `partial[share][channel]`,
// and `finish` adds the shares. What is summed of the element x of a channel:
enum Summand {
  VALUE = 0,    // x
  SQUARE = 1,   // (x - table[channel])^2
  GRADIENT = 2, // gs, the gradient at this element
  PRODUCT = 3,  // gs * (x - mean) * (1 / deviation), of a table as `normalise` takes it
};

extern "C" __global__ void column_sums(u64 rows, u32 channels, u32 summand, const float *xs, const float *gs,
                                       const float *table, float *partial) {
  __shared__ float sums[8][32];
  u32 channel = blockIdx.x * 32 + threadIdx.x;
  float sum = 0.f;
  if (channel < channels) {
    float mean = 0.f, scale = 1.f;
    if (summand == SQUARE) mean = table[channel];
    if (summand == PRODUCT) mean = table[2 * channels + channel], scale = table[3 * channels + channel];
    for (u64 row = (u64)blockIdx.y * 8 + threadIdx.y; row < rows; row += (u64)gridDim.y * 8) {
      u64 i = row * channels + channel;
      float x = summand == GRADIENT ? 0.f : xs[i] - mean;
      if (summand == VALUE) sum += x;
      if (summand == SQUARE) sum += x * x;
      if (summand == GRADIENT) sum += gs[i];
      if (summand == PRODUCT) sum += gs[i] * (x * scale);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && channel < channels) {
    float total = 0.f;
    for (u32 y = 0; y < 8; y++) total += sums[y][threadIdx.x];
    partial[(u64)blockIdx.y * channels + channel] = total;
  }
}

// The shares' sum times `factor`, for each channel.
extern "C" __global__ void finish(u32 channels, u32 shares, double factor, const float *partial, float *to) {
  for (u64 channel = first(); channel < channels; channel += step()) {
    double sum = 0.;
    for (u32 share = 0; share < shares; share++) sum += partial[(u64)share * channels + channel];
    to[channel] = (float)(sum * factor);
  }
}

// (x - mean) * (gamma / deviation) + beta, plus the residual unless that is null, then ReLU if asked for. The table has four
// rows of channels: gamma, beta, mean, 1 / deviation.
extern "C" __global__ void normalise(u64 n, u32 channels, u32 relu, const float *xs, const float *table,
                                     const float *residual, float *to) {
  for (u64 i = first(); i < n; i += step()) {
    u32 channel = i % channels;
    const float *column = table + channel;
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

// The gradient of what `normalise` took. `sums`: of gradients times normalised values, then of gradients, a row of channels
// each. `share`: 1 / rows if mean and deviation are those of `xs`, 0 if they are constants.
extern "C" __global__ void input_gradient(u64 n, u32 channels, float share, const float *xs, const float *gs,
                                          const float *table, float *to) {
  for (u64 i = first(); i < n; i += step()) {
    const float *column = table + i % channels;
    float normal = (xs[i] - column[2 * channels]) * column[3 * channels];
    float of_mean = share * column[5 * channels], of_deviation = share * column[4 * channels];
    to[i] = column[0] * column[3 * channels] * (gs[i] - of_mean - normal * of_deviation);
  }
}
