"""The models of these benches in PyTorch, with the parameters of the native ones."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ShortcutA(nn.Module):
    """Option A of He et al. 2016: stride by slicing, new channels zero."""
    def __init__(self, extra):
        super().__init__()
        self.extra = extra

    def forward(self, x):
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra // 2))


class Block(nn.Module):
    def __init__(self, i, o, stride, option_a):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False); self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False); self.bn2 = nn.BatchNorm2d(o)
        if stride == 1 and i == o:
            self.shortcut = nn.Identity()
        elif option_a:
            self.shortcut = ShortcutA(o - i)
        else:
            self.shortcut = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, widths, n, option_a, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False); self.bn1 = nn.BatchNorm2d(widths[0])
        blocks, i = [], widths[0]
        for s, w in enumerate(widths):
            for b in range(n):
                blocks.append(Block(i, w, 2 if s and not b else 1, option_a)); i = w
        self.blocks = nn.Sequential(*blocks); self.linear = nn.Linear(i, classes)
        # As torchvision and the native ones.
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.linear(self.blocks(F.relu(self.bn1(self.conv1(x)), inplace=True)).mean((2, 3)))


class Vgg16(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        layers, i = [], 3
        for n, w in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
            for _ in range(n):
                layers += [nn.Conv2d(i, w, 3, 1, 1), nn.BatchNorm2d(w), nn.ReLU(inplace=True)]; i = w
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers); self.linear = nn.Linear(i, classes)

    def forward(self, x):
        return self.linear(self.features(x).flatten(1))


class Unscaled(nn.BatchNorm2d):
    """Batch norm without a scale, with airbench's settings."""
    def __init__(self, width):
        super().__init__(width, eps=1e-12, momentum=0.4)
        # Ones that are not learned: without a weight, the backward pass of PyTorch 2.11 fails on a GPU.
        del self.weight
        self.register_buffer("weight", torch.ones(width), persistent=False)


class AirbenchGroup(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, 1, 1, bias=False); self.bn1 = Unscaled(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False); self.bn2 = Unscaled(o)
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight.data[:conv.in_channels])

    def forward(self, x):
        return F.gelu(self.bn2(self.conv2(F.gelu(self.bn1(F.max_pool2d(self.conv1(x), 2))))))


class Airbench(nn.Module):
    """The network of airbench93 (Jordan 2024)."""
    def __init__(self, widths=(64, 128, 128), classes=10):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2); nn.init.zeros_(self.whiten.bias)
        self.whiten.weight.requires_grad_(False)
        self.groups = nn.Sequential(*(AirbenchGroup(i, o) for i, o in zip((24, *widths), widths)))
        self.fc = nn.Linear(widths[-1], classes, bias=False)

    def prepare(self, images):
        """Filters that whiten the 2x2 patches of these images, and their negatives."""
        patches = F.unfold(images, 2).transpose(1, 2).reshape(-1, 12).double()
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).reshape(12, 3, 2, 2).float()
        self.whiten.weight.data.copy_(torch.cat([filters, -filters]))

    def forward(self, x):
        x = F.max_pool2d(self.groups(F.gelu(self.whiten(x))), 3)
        return self.fc(x.flatten(1)) / 9


class FastText(nn.Module):
    def __init__(self, vocab=30000, dim=128, classes=4):
        super().__init__()
        self.e = nn.EmbeddingBag(vocab, dim, mode="mean"); self.fc = nn.Linear(dim, classes)

    def forward(self, x):
        return self.fc(self.e(x))


class TextCnn(nn.Module):
    def __init__(self, vocab=30000, dim=128, filters=100, classes=4):
        super().__init__()
        self.e = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, filters, k) for k in (3, 4, 5)); self.fc = nn.Linear(3 * filters, classes)

    def forward(self, x):
        x = self.e(x).transpose(1, 2)
        return self.fc(torch.cat([F.relu(c(x)).amax(2) for c in self.convs], 1))


class BiLstm(nn.Module):
    def __init__(self, vocab=30000, dim=128, hidden=128, classes=4):
        super().__init__()
        self.e = nn.Embedding(vocab, dim); self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, x):
        return self.fc(self.lstm(self.e(x))[0].mean(1))


class Transformer(nn.Module):
    def __init__(self, vocab=30000, dim=128, heads=4, layers=2, feed_forward=256, positions=64, classes=4):
        super().__init__()
        self.e = nn.Embedding(vocab, dim, padding_idx=0); self.p = nn.Embedding(positions, dim)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(dim, heads, feed_forward, dropout=0, activation="gelu",
                                                               batch_first=True, norm_first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(dim); self.fc = nn.Linear(dim, classes)

    def forward(self, x):
        words = x != 0
        # A mask that hides nothing costs time all the same.
        silent = None if words.all() else ~words
        x = self.e(x) + self.p.weight[:x.shape[1]]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=silent)
        words = words.unsqueeze(2)
        return self.fc((self.norm(x) * words).sum(1) / words.sum(1).clamp(min=1))


class GptLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1 = nn.LayerNorm(dim); self.qkv = nn.Linear(dim, 3 * dim); self.out = nn.Linear(dim, dim)
        self.n2 = nn.LayerNorm(dim); self.up = nn.Linear(dim, 4 * dim); self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Gpt(nn.Module):
    """nanoGPT's model for a laptop: a tied head, no dropout, as its own code computes it."""
    def __init__(self, vocab=65, dim=128, heads=4, layers=4, length=64):
        super().__init__()
        self.e = nn.Embedding(vocab, dim); self.p = nn.Embedding(length, dim)
        self.layers = nn.ModuleList(GptLayer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim); self.head = nn.Linear(dim, vocab, bias=False); self.head.weight = self.e.weight
        nn.init.normal_(self.e.weight, std=0.02)

    def forward(self, x):
        x = self.e(x) + self.p.weight[:x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).flatten(0, 1)


MODELS = {"resnet20": lambda: ResNet([16, 32, 64], 3, True), "resnet18": lambda: ResNet([64, 128, 256, 512], 2, False),
          "vgg16": Vgg16, "airbench": Airbench, "fasttext": FastText, "textcnn": TextCnn, "bilstm": BiLstm,
          "transformer": Transformer, "gpt": Gpt}
