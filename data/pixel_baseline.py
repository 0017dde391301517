"""A baseline for classifiers of images: multinomial logistic regression on their pixels. A network
has learned more than colours and positions only if it scores higher."""
import torch
import torch.nn.functional as F

MOST = 50_000  # training images, drawn at random. CIFAR-10's take a few seconds
WIDTH = 16  # of an image: larger ones are averaged. 32 gives no better accuracy on CIFAR-10
PENALTY = 0.1  # of |weights|^2 / 2 next to the mean loss. 0.01 to 1 differ by 2 points on CIFAR-10


def pixel_baseline(images, labels, test_images, test_labels):
    """The accuracy on test images of a linear classifier of training images. images (N, 3, H, H)
    uint8, labels (N,) class numbers."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(images), generator=generator)[:MOST]
    x = small_pixels(images[chosen])
    labels = labels[chosen]
    mean = x.mean(0)
    deviation = x.std(0).clamp(min=1e-3)
    weights = torch.zeros(int(labels.max()) + 1, x.shape[1], requires_grad=True)
    bias = torch.zeros(len(weights), requires_grad=True)
    x = (x - mean) / deviation
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, weights, bias), labels)
        loss = loss + PENALTY * weights.square().sum() / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    test = (small_pixels(test_images) - mean) / deviation
    with torch.no_grad():
        predictions = F.linear(test, weights, bias).argmax(1)
    return (predictions == test_labels).double().mean().item()


def small_pixels(images):
    """Pixels 0..1 of images (N, 3, H, H) uint8, at most WIDTH wide, as (N, inputs)."""
    parts = []
    for part in images.split(1000):
        pixels = part.float() / 255
        if pixels.shape[-1] > WIDTH:
            pixels = F.adaptive_avg_pool2d(pixels, WIDTH)
        parts.append(pixels.flatten(1))
    return torch.cat(parts)
