"""The PyTorch models that gradwire-models must equal, and the formulas of the golden inputs.

The CIFAR ResNets carry the names of github.com/akamaster/pytorch_resnet_cifar10, ResNet-18 and -34
those of torchvision (with the stem for small images: 3x3, stride 1, no max-pool), VGG-16 those of
torchvision's vgg16_bn with one linear layer, as in github.com/kuangliu/pytorch-cifar.
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

PAD = 0


class ShortcutA(nn.Module):
    """Option A of He et al. 2016: every second pixel, new channels zero on either side."""

    def __init__(self, extra):
        super().__init__()
        self.extra = extra

    def forward(self, x):
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra // 2))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride, option_a):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        if stride == 1 and inputs == outputs:
            self.downsample = nn.Identity()
        elif option_a:
            self.downsample = ShortcutA(outputs - inputs)
        else:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self, widths, blocks, option_a, head, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU()
        inputs = widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks)):
            layer = []
            for block in range(count):
                layer.append(Block(inputs, width, 2 if stage and not block else 1, option_a))
                inputs = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layer))
        self.stages, self.head = len(widths), head
        setattr(self, head, nn.Linear(inputs, classes))

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x.permute(0, 3, 1, 2))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return getattr(self, self.head)(x.mean((2, 3)))


class Vgg16(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        layers = []
        for count, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x):
        return self.classifier(self.features(x.permute(0, 3, 1, 2)).mean((2, 3)))


class Norm(nn.BatchNorm2d):
    """Batch norm without a scale, with airbench's settings."""

    def __init__(self, channels):
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.register_parameter("weight", None)


class Group(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.bn1 = Norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = Norm(outputs)

    def forward(self, x):
        x = F.gelu(self.bn1(self.pool(self.conv1(x))))
        return F.gelu(self.bn2(self.conv2(x)))


class Airbench(nn.Module):
    """The network of airbench93 (Jordan 2024) with the names of He et al.'s networks."""

    def __init__(self, widths, scale, channels, classes):
        super().__init__()
        self.whiten = nn.Conv2d(channels, 8 * channels, 2)
        self.whiten.weight.requires_grad_(False)
        self.layer1 = Group(8 * channels, widths[0])
        self.layer2 = Group(widths[0], widths[1])
        self.layer3 = Group(widths[1], widths[2])
        self.pool = nn.MaxPool2d(3)
        self.fc = nn.Linear(widths[2], classes, bias=False)
        self.scale = scale

    def forward(self, x):
        x = F.gelu(self.whiten(x.permute(0, 3, 1, 2)))
        x = self.pool(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.flatten(1)) * self.scale


class FastText(nn.Module):
    def __init__(self, vocabulary, dim, classes):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, dim, mode="mean", padding_idx=PAD)
        self.fc = nn.Linear(dim, classes)

    def forward(self, ids):
        return self.fc(self.embedding(ids))


class TextCnn(nn.Module):
    def __init__(self, vocabulary, dim, filters, widths, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=PAD)
        self.convs = nn.ModuleList(nn.Conv1d(dim, filters, width) for width in widths)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(len(widths) * filters, classes)

    def forward(self, ids):
        x = self.embedding(ids).transpose(1, 2)
        over_time = [self.relu(conv(x)) for conv in self.convs]
        return self.fc(torch.cat([F.max_pool1d(y, y.shape[2])[:, :, 0] for y in over_time], 1))


class BiLstm(nn.Module):
    def __init__(self, vocabulary, dim, hidden, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=PAD)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, ids):
        lengths = (ids != PAD).sum(1)
        # Packing refuses empty texts: give them one step, which the mask takes out again.
        packed = pack_padded_sequence(
            self.embedding(ids), lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        words = (ids != PAD).unsqueeze(2)
        return self.fc((states * words).sum(1) / lengths.clamp(min=1).unsqueeze(1))


class Transformer(nn.Module):
    def __init__(self, vocabulary, dim, heads, layers, feed_forward, positions, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=PAD)
        self.positions = nn.Embedding(positions, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, feed_forward, dropout=0, activation="gelu", batch_first=True,
                                       norm_first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, classes)

    def forward(self, ids):
        words = ids != PAD
        x = self.embedding(ids) + self.positions.weight[:ids.shape[1]]
        # Attention among no words at all is not a number: empty texts get one, which the mask takes out again.
        silent = ~words
        silent[:, 0] &= words.any(1)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=silent)
        words = words.unsqueeze(2)
        return self.fc((self.norm(x) * words).sum(1) / words.sum(1).clamp(min=1))


class GptLayer(nn.TransformerEncoderLayer):
    """PyTorch's own layer, or with rotary positions its parameters and the attention by hand."""

    def __init__(self, dim, heads, feed_forward, rotary):
        super().__init__(dim, heads, feed_forward, dropout=0, activation="gelu", batch_first=True, norm_first=True)
        self.heads, self.rotary = heads, rotary

    def turned(self, x):
        """Values i and i + width / 2 of a head at position p, turned by p · 10000^(-2i / width)."""
        length, width = x.shape[-2:]
        rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
        sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x, later):
        rows = F.linear(x, self.self_attn.in_proj_weight, self.self_attn.in_proj_bias)
        query, key, value = rows.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.turned(query) @ self.turned(key).transpose(-2, -1) / math.sqrt(query.shape[-1])
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        return self.self_attn.out_proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x, later):
        if not self.rotary:
            return super().forward(x, src_mask=later)
        x = x + self.attention(self.norm1(x), later)
        return x + self._ff_block(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, length, positions="learned", tied=True, dim=128, heads=4, layers=4):
        super().__init__()
        rotary = positions == "rotary"
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = None if rotary else nn.Embedding(length, dim)
        self.layers = nn.ModuleList(GptLayer(dim, heads, 4 * dim, rotary) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = None if tied else nn.Linear(dim, vocabulary, bias=False)

    def forward(self, ids):
        length = ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[:length]
        for layer in self.layers:
            x = layer(x, later)
        head = self.tokens if self.head is None else self.head
        return F.linear(self.norm(x), head.weight).flatten(0, 1)


CIFAR_BLOCKS = {"resnet8": 1, "resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9, "resnet110": 18}
DEPTH_WIDTH = {"depth": 14, "width": 24}
"""Settings of the golden `resnet`."""
WIDE_BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
TEXTS = ("fasttext", "textcnn", "bilstm", "transformer")
GPTS = {"gpt": {}, "gpt-rotary": {"positions": "rotary", "tied": False}}
SETTINGS = {"resnet": DEPTH_WIDTH, **GPTS}
MODELS = ("resnet", *CIFAR_BLOCKS, *WIDE_BLOCKS, "vgg16", "airbench", *TEXTS, *GPTS)


def build(name, channels=3, vocabulary=50, classes=10, length=12):
    """The model with gradwire's default settings, or those of `SETTINGS`."""
    if name == "resnet":
        width = DEPTH_WIDTH["width"]
        return ResNet((width, 2 * width, 4 * width), (DEPTH_WIDTH["depth"] // 6,) * 3, True, "linear", channels, classes)
    if name in GPTS:
        return Gpt(classes, length, **GPTS[name])
    if name in CIFAR_BLOCKS:
        return ResNet((16, 32, 64), (CIFAR_BLOCKS[name],) * 3, True, "linear", channels, classes)
    if name in WIDE_BLOCKS:
        return ResNet((64, 128, 256, 512), WIDE_BLOCKS[name], False, "fc", channels, classes)
    return {
        "vgg16": lambda: Vgg16(channels, classes),
        "airbench": lambda: Airbench((64, 128, 128), 1 / 9, channels, classes),
        "fasttext": lambda: FastText(vocabulary, 128, classes),
        "textcnn": lambda: TextCnn(vocabulary, 128, 100, (3, 4, 5), classes),
        "bilstm": lambda: BiLstm(vocabulary, 128, 128, classes),
        "transformer": lambda: Transformer(vocabulary, 128, 4, 2, 256, 64, classes),
    }[name]()


# The golden formulas. models/src/golden/formula.rs says the same in Rust.

def hashes(name, count):
    """32-bit hashes of (name, 0), (name, 1), …: FNV-1a of the name plus a Weyl sequence, mixed by lowbias32."""
    start = 0x811C9DC5
    for byte in name.encode():
        start = (start ^ byte) * 0x01000193 % 2**32
    x = (start + np.arange(count, dtype=np.uint64) * 0x9E3779B9) % 2**32
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16


def uniform(name, count):
    """In [-1, 1), exact in f64."""
    return hashes(name, count) / 2.0**31 - 1


def parameter(name, shape):
    """The golden value of a parameter or buffer, rounded to f32.

    A batch norm's bias stays away from 0, and so most of what ReLU sees away from its kink.
    """
    u = uniform(name, math.prod(shape))
    if name.endswith("running_var"):
        u = 1 + u / 2
    elif len(shape) == 1 and name.endswith(".weight"):
        u = 1 + u / 4
    elif name.endswith(".bias") and any(part in name for part in ("bn", "downsample", "features")):
        u = np.where(u < 0, u - 3, u + 3) / 2
    elif len(shape) == 1:
        u = u / 10
    elif name == "embedding.weight":
        u[: shape[1]] = 0
    else:
        u = u * math.sqrt(6 / math.prod(shape[1:]))
    return torch.from_numpy(u.astype(np.float32).reshape(shape))


def images(seed, batch, height, width, channels=3):
    """Golden pixels, NHWC."""
    u = uniform(f"images {seed}", batch * height * width * channels)
    return torch.from_numpy(u.astype(np.float32).reshape(batch, height, width, channels))


def texts(seed, batch, length, vocabulary):
    """Golden token ids: text b has length - b * length // (batch - 1) tokens, the last text none."""
    ids = 1 + hashes(f"texts {seed}", batch * length).astype(np.int64) % (vocabulary - 1)
    ids = ids.reshape(batch, length)
    for b in range(batch):
        ids[b, length - b * length // (batch - 1):] = PAD
    return torch.from_numpy(ids)


def sequences(seed, batch, length, vocabulary):
    """Golden pieces of a text to continue."""
    ids = hashes(f"sequences {seed}", batch * length).astype(np.int64) % vocabulary
    return torch.from_numpy(ids.reshape(batch, length))


def labels(seed, batch, classes):
    return torch.from_numpy(hashes(f"labels {seed}", batch).astype(np.int64) % classes)


def fill(model):
    """Sets every floating-point entry of the model's state to its golden value."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(parameter(name, tensor.shape))
